"""Image files without Pillow."""

import struct
import zlib


def encode_png(width: int, height: int) -> bytes:
    """Return a PNG of one color, with one bit for each pixel."""

    def encode_chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + bytes((width + 7) // 8)) * height, 9)
    chunks = ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(encode_chunk(*chunk) for chunk in chunks)
