"""RequestQueue: requests that wait for rows of a batch, and the number of rows that may run at once."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

from qkv.decode.request import Request

UNLIMITED_BATCH_SIZE = 1 << 30


class RequestQueue:
    """Waiting requests in the order of their ids; any thread may add and remove them.

    `max_batch_size` is the limit of the user, None: none. `row_limit` is the limit after a step that
    failed, such as for lack of memory; it increases with every request that finishes."""

    def __init__(self, max_batch_size: int | None = None) -> None:
        self.max_batch_size = max_batch_size
        self.row_limit: int | None = None
        self.requests: list[Request] = []
        self._lock = Lock()

    def add(self, requests: Iterable[Request]) -> None:
        """Append new requests."""
        with self._lock:
            self.requests += requests

    def put_back(self, requests: Iterable[Request]) -> None:
        """Insert requests that have to start again."""
        with self._lock:
            unique = {*self.requests, *requests}
            self.requests = sorted(
                unique, key=lambda request: (request.request_id, request.sample_index)
            )

    def remove(self, request_id: int) -> None:
        """Remove all samples of a request."""
        with self._lock:
            self.requests = [
                request for request in self.requests if request.request_id != request_id
            ]

    def take(self, num_running_rows: int) -> list[Request]:
        """Remove and return the requests that fit beside the running rows, in order.

        All samples of a prompt are taken together. A request with more rows than the limit runs
        alone."""
        with self._lock:
            limits = [self.max_batch_size, self.row_limit, UNLIMITED_BATCH_SIZE]
            available = min(limit for limit in limits if limit is not None) - num_running_rows
            rows_by_request_id = {request.request_id: 0 for request in self.requests}
            for request in self.requests:
                rows_by_request_id[request.request_id] += request.num_rows
            num_taken = 0
            taken_ids: set[int] = set()
            for request_id, num_rows in rows_by_request_id.items():
                if num_taken + num_rows > available and (num_taken or num_running_rows):
                    break
                taken_ids.add(request_id)
                num_taken += num_rows
            taken = [request for request in self.requests if request.request_id in taken_ids]
            self.requests = [
                request for request in self.requests if request.request_id not in taken_ids
            ]
            return taken

    def raise_row_limit(self) -> None:
        """Allow one more row, after a request has finished."""
        if self.row_limit is not None:
            self.row_limit += 1
