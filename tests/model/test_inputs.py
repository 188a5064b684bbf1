"""Invalid inputs of a model give an error of one line: the input, its value, what was expected."""

from functools import cache
from typing import Any

import pytest
import torch

import qkv
from tests.support import tiny
from tests.support.limits import get_error_message

B, T = 2, 5
IDS = tiny.random_ids(B, T)
MASK = torch.ones(B, T, dtype=torch.bool)
LONG_IDS = tiny.random_ids(1, 65)
EMBEDS = torch.zeros(B, T, tiny.WIDTH)
FLOATS = torch.ones(B, T)
STATES = torch.zeros(B, 3, tiny.WIDTH)
PIXEL_VALUES = torch.zeros(B, 3, 12, 12)
CLIPS = torch.zeros(B, 5, 2, 12, 12)
IDS_WITH_EOS = torch.cat([IDS, torch.full((B, 1), 2)], 1)
CROSS_ATTENTION: dict[str, Any] = dict(is_decoder=True, add_cross_attention=True)
MEMS = torch.zeros(2, B, 4, tiny.WIDTH)
EYE = torch.eye(T).expand(B, T, T)
# Family, changes, inputs, and words of the error message (~ is a space).
INVALID_INPUTS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    *((name, {}, {}, "no~input input_ids inputs_embeds") for name in tiny.TEXT_FAMILIES if name != "clip"),
    *((family, {}, {}, "no~input pixel_values") for family in tiny.PIXEL_FAMILIES),
    ("vit", {}, dict(pixel_values=PIXEL_VALUES[:, :2]), "pixel_values (2,~2,~12,~12) (B,~3,~12,~12)"),
    ("vit", {}, dict(pixel_values=PIXEL_VALUES[None]), "pixel_values (B,~3,~12,~12)"),
    ("vit", {}, dict(pixel_values=PIXEL_VALUES, attention_mask=MASK), "attention_mask pixel_values"),
    ("vit", {}, dict(input_ids=IDS), "input_ids text~tower pixel_values"),
    ("video-transformer", {}, dict(pixel_values=PIXEL_VALUES), "pixel_values (B,~T,~2,~12,~12)"),
    ("video-transformer", {}, dict(attention_mask=MASK), "attention_mask pixel_values"),
    ("video-transformer", {}, dict(pixel_values=CLIPS, attention_mask=torch.ones(B, 4).bool()),
     "attention_mask (B,~T) T~=~5"),
    ("video-transformer", {}, dict(pixel_values=CLIPS.repeat(1, 13, 1, 1, 1)), "pixel_values 65 64"),
    ("clip", {}, {}, "no~input input_ids pixel_values"),
    ("bert", {}, dict(attention_mask=MASK), "attention_mask input_ids"),
    ("bert", {}, dict(input_ids=[[5, 6]]), "input_ids list tensor"),
    ("bert", {}, dict(input_ids=5), "input_ids int tensor"),
    ("bert", {}, dict(input_ids=IDS, attention_mask=[[1]]), "attention_mask list tensor"),
    ("bert", {}, dict(input_ids=IDS.float()), "input_ids float32 int64"),
    ("bert", {}, dict(input_ids=IDS.bool()), "input_ids bool int64"),
    ("bert", {}, dict(input_ids=IDS[0]), "input_ids (5,) (B,~T)"),
    ("bert", {}, dict(input_ids=IDS[None]), "input_ids (1,~2,~5) (B,~T)"),
    ("bert", {}, dict(input_ids=torch.tensor(5)), "input_ids () (B,~T)"),
    ("bert", {}, dict(input_ids=IDS[:, :0]), "input_ids (2,~0)"),
    ("bert", {}, dict(input_ids=IDS[:0]), "input_ids (0,~5)"),
    ("bert", {}, dict(input_ids=IDS + 53), "input_ids 52"),
    ("bert", {}, dict(input_ids=IDS - 60), "input_ids -"),
    ("bert", {}, dict(input_ids=LONG_IDS), "input_ids 65 64"),
    ("bert", {}, dict(inputs_embeds=torch.zeros(1, 65, 24)), "inputs_embeds 65 64"),
    ("bert", {}, dict(input_ids=IDS, inputs_embeds=EMBEDS), "input_ids inputs_embeds"),
    ("bert", {}, dict(inputs_embeds=EMBEDS[..., :7]), "inputs_embeds (2,~5,~7) 24"),
    ("bert", {}, dict(inputs_embeds=EMBEDS.long()), "inputs_embeds int64 float"),
    ("bert", {}, dict(inputs_embeds=EMBEDS[0]), "inputs_embeds (5,~24)"),
    ("albert", {}, dict(inputs_embeds=EMBEDS), "inputs_embeds (2,~5,~24) 12"),
    ("bert", {}, dict(input_ids=IDS, attention_mask=MASK[:, 1:]), "attention_mask (2,~4) 5"),
    ("bert", {}, dict(input_ids=IDS, attention_mask=MASK[:1]), "attention_mask (1,~5) 2"),
    ("bert", {}, dict(input_ids=IDS, attention_mask=MASK[:, None]), "attention_mask (2,~1,~5)"),
    ("bert", {}, dict(input_ids=IDS, attention_mask=-1e9 * FLOATS), "attention_mask float32 bool"),
    ("bert", {}, dict(input_ids=IDS, position_ids=IDS[:, 1:]), "position_ids (2,~4) 5"),
    ("bert", {}, dict(input_ids=IDS, position_ids=IDS.float()), "position_ids float32 int64"),
    ("bert", {}, dict(input_ids=IDS, position_ids=IDS + 60), "position_ids 63"),
    ("bert", {}, dict(input_ids=IDS, position_ids=IDS - 60), "position_ids -"),
    ("roberta", {}, dict(input_ids=tiny.random_ids(1, 59)), "input_ids 59 58"),
    ("roberta", {}, dict(input_ids=IDS, position_ids=IDS + 50), "position_ids 57"),
    ("bert", {}, dict(input_ids=IDS, token_type_ids=IDS), "token_type_ids 2"),
    ("bert", {}, dict(input_ids=IDS, token_type_ids=-IDS), "token_type_ids -"),
    ("bert", {}, dict(input_ids=IDS, token_type_ids=IDS[:, 1:] * 0), "token_type_ids (2,~4) 5"),
    ("bert", {}, dict(input_ids=IDS, token_type_ids=IDS.float() * 0), "token_type_ids float32"),
    ("gpt2", {}, dict(input_ids=IDS, token_type_ids=IDS + 53), "token_type_ids 52"),
    *(
        (f, {}, dict(input_ids=IDS, decoder_input_ids=IDS), "decoder_input_ids decoder")
        for f in ("bert", "gpt2", "xlnet", "llama")
    ),
    *(
        (f, {}, dict(input_ids=IDS, decoder_attention_mask=MASK), "decoder_attention_mask decoder")
        for f in ("bert", "gpt2", "bart")
    ),
    *(
        (f, {}, dict(input_ids=IDS, encoder_hidden_states=STATES), "encoder_hidden_states cross")
        for f in ("bert", "gpt2", "llama", "xlnet")
    ),
    *((f, {}, dict(input_ids=IDS, mems=MEMS), "mems recurrence") for f in ("bert", "gpt2", "bart")),
    *(
        (f, {}, dict(input_ids=IDS, perm_mask=EYE), "perm_mask stream")
        for f in ("bert", "gpt2", "transformer-xl")
    ),
    *(
        (f, {}, dict(input_ids=IDS, target_mapping=EYE), "target_mapping stream")
        for f in ("bert", "gpt2", "transformer-xl")
    ),
    *(
        (f, {}, dict(input_ids=IDS, mc_token_ids=IDS[:, 0]), "mc_token_ids head")
        for f in ("bert", "gpt2", "xlnet")
    ),
    *(
        (f, {}, dict(input_ids=IDS, pixel_values=PIXEL_VALUES), "pixel_values tower")
        for f in ("bert", "gpt2", "bart")
    ),
    *((f, {}, dict(input_ids=IDS), "decoder_input_ids") for f in ("transformer", "marian", "t5", "switch")),
    *((f, {}, dict(inputs_embeds=EMBEDS), "decoder_input_ids") for f in ("bart", "mbart", "t5")),
    *(
        (f, {}, dict(input_ids=IDS, decoder_input_ids=IDS + 53), "decoder_input_ids 52")
        for f in tiny.ENCODER_DECODERS
    ),
    ("bart", {}, dict(input_ids=IDS, decoder_input_ids=IDS[:1]), "decoder_input_ids (1,~5) 2"),
    ("bart", {}, dict(input_ids=IDS, decoder_input_ids=IDS.float()), "decoder_input_ids float32 int64"),
    ("bart", {}, dict(input_ids=IDS, decoder_input_ids=IDS[0]), "decoder_input_ids (5,)"),
    ("bart", {}, dict(input_ids=IDS[:1], decoder_input_ids=LONG_IDS), "decoder_input_ids 65 64"),
    ("bart", {}, dict(input_ids=LONG_IDS), "input_ids 65 64"),
    (
        "bart",
        {},
        dict(input_ids=IDS, decoder_input_ids=IDS, decoder_attention_mask=MASK[:, 1:]),
        "decoder_attention_mask (2,~4) 5",
    ),
    ("bart", {}, dict(decoder_input_ids=IDS), "no~input encoder_hidden_states"),
    ("bart", {}, dict(encoder_hidden_states=STATES), "decoder_input_ids"),
    (
        "bart",
        {},
        dict(encoder_hidden_states=STATES[..., :7], decoder_input_ids=IDS),
        "encoder_hidden_states (2,~3,~7) 24",
    ),
    ("bart", {"head": "sequence-classification"}, dict(input_ids=IDS), "end 2"),
    (
        "bart",
        {"head": "sequence-classification"},
        dict(inputs_embeds=EMBEDS, decoder_input_ids=IDS),
        "inputs_embeds end input_ids",
    ),
    ("t5", {"head": "sequence-classification"}, dict(input_ids=IDS_WITH_EOS), "end 1"),
    (
        "bart",
        {"head": "sequence-classification"},
        dict(input_ids=IDS_WITH_EOS, decoder_input_ids=IDS),
        "decoder_input_ids 5 6 sequence_classification",
    ),
    ("clip", {}, dict(inputs_embeds=EMBEDS), "inputs_embeds end input_ids"),
    (
        "bert",
        CROSS_ATTENTION,
        dict(input_ids=IDS, encoder_hidden_states=STATES[..., :7]),
        "encoder_hidden_states (2,~3,~7) 24",
    ),
    (
        "bert",
        CROSS_ATTENTION,
        dict(input_ids=IDS, encoder_hidden_states=STATES[:1]),
        "encoder_hidden_states (1,~3,~24) 2",
    ),
    (
        "bert",
        CROSS_ATTENTION,
        dict(input_ids=IDS, encoder_hidden_states=STATES[0]),
        "encoder_hidden_states (3,~24)",
    ),
    (
        "bert",
        CROSS_ATTENTION,
        dict(input_ids=IDS, encoder_hidden_states=STATES.long()),
        "encoder_hidden_states int64",
    ),
    (
        "bert",
        CROSS_ATTENTION,
        dict(input_ids=IDS, encoder_hidden_states=STATES, encoder_attention_mask=MASK),
        "encoder_attention_mask (2,~5) 3",
    ),
    (
        "bert",
        CROSS_ATTENTION,
        dict(input_ids=IDS, encoder_attention_mask=MASK),
        "encoder_attention_mask encoder_hidden_states",
    ),
    ("xlnet", {}, dict(input_ids=IDS, mems=MEMS[:1]), "mems (1,~2,~4,~24) 2"),
    ("xlnet", {}, dict(input_ids=IDS, mems=MEMS[:, :1]), "mems (2,~1,~4,~24)"),
    ("xlnet", {}, dict(input_ids=IDS, mems=MEMS[..., :7]), "mems (2,~2,~4,~7) 24"),
    ("xlnet", {}, dict(input_ids=IDS, mems=MEMS[0]), "mems (2,~4,~24)"),
    ("xlnet", {}, dict(input_ids=IDS, mems=MEMS.long()), "mems int64"),
    ("transformer-xl", {}, dict(input_ids=IDS, mems=MEMS[:1]), "mems (1,~2,~4,~24) 2"),
    ("transformer-xl", {}, dict(input_ids=IDS + 53), "input_ids 52"),
    ("xlnet", {}, dict(input_ids=IDS, perm_mask=EYE[:, 1:]), "perm_mask (2,~4,~5) 5"),
    ("xlnet", {}, dict(input_ids=IDS, perm_mask=EYE[0]), "perm_mask (5,~5)"),
    ("xlnet", {}, dict(input_ids=IDS, target_mapping=EYE[..., 1:]), "target_mapping (2,~5,~4) 5"),
    ("xlnet", {}, dict(input_ids=IDS, target_mapping=EYE * 0), "target_mapping 1"),
    ("xlnet", {}, dict(input_ids=IDS, target_mapping=EYE * 0 + 1), "target_mapping 1"),
    ("xlnet", {}, dict(input_ids=IDS, target_mapping=EYE / 2), "target_mapping 1"),
    ("gpt2", {"head": "double-heads"}, dict(input_ids=IDS), "input_ids (2,~5) (B,~C,~T)"),
    (
        "gpt2",
        {"head": "double-heads"},
        dict(input_ids=IDS[None], attention_mask=MASK),
        "attention_mask (2,~5)",
    ),
    (
        "gpt2",
        {"head": "double-heads"},
        dict(input_ids=IDS[None], mc_token_ids=IDS[None, :, 0]),
        "mc_token_ids 0 4",
    ),
    (
        "gpt2",
        {"head": "double-heads"},
        dict(input_ids=IDS[None], mc_token_ids=-IDS[None, :, 0]),
        "mc_token_ids -",
    ),
    (
        "gpt2",
        {"head": "double-heads"},
        dict(input_ids=IDS[None], mc_token_ids=IDS[0, :1]),
        "mc_token_ids (1,)",
    ),
    (
        "gpt2",
        {"head": "double-heads"},
        dict(input_ids=IDS[None], mc_token_ids=FLOATS[None, :, 0]),
        "mc_token_ids float32",
    ),
    ("bert", {"head": "multiple-choice"}, dict(input_ids=IDS), "input_ids (2,~5) (B,~C,~T)"),
    ("clip", {}, dict(pixel_values=PIXEL_VALUES[:, :1]), "pixel_values (2,~1,~12,~12) 3"),
    ("clip", {}, dict(pixel_values=PIXEL_VALUES[..., 1:]), "pixel_values (2,~3,~12,~11) 12"),
    ("clip", {}, dict(pixel_values=PIXEL_VALUES[0]), "pixel_values (3,~12,~12)"),
    ("clip", {}, dict(pixel_values=PIXEL_VALUES.to(torch.uint8)), "pixel_values uint8 float"),
    ("clip", {}, dict(input_ids=LONG_IDS), "input_ids 65 64"),
    ("clip", {}, dict(input_ids=IDS + 53), "input_ids 52"),
    ("clip", {"head": "text"}, dict(pixel_values=PIXEL_VALUES), "pixel_values tower"),
    ("clip", {"head": "image"}, dict(input_ids=IDS), "input_ids tower"),
    ("clip", {"head": "image"}, {}, "pixel_values"),
    ("bert", {}, dict(input_ids=IDS, extra_outputs=("rocket",)), "extra_outputs rocket hidden_states"),
    ("bert", {}, dict(input_ids=IDS, extra_outputs="hidden_states"), "extra_outputs hidden_states"),
    ("bert", {}, dict(input_ids=IDS, extra_outputs=5), "extra_outputs 5"),
    (
        "bert",
        {},
        dict(input_ids=IDS, extra_outputs=("router_logits",)),
        "extra_outputs router_logits experts",
    ),
]  # fmt: skip
TEST_IDS = [f"{family} {words} {n}" for n, (family, _, _, words) in enumerate(INVALID_INPUTS)]


@cache
def build_fp32(family: str, *changes: tuple[str, Any]) -> qkv.Model:
    return tiny.build(family, dtype=torch.float32, **dict(changes))


@pytest.mark.parametrize(("family", "changes", "inputs", "words"), INVALID_INPUTS, ids=TEST_IDS)
def test_invalid_inputs_are_errors(
    family: str, changes: dict[str, Any], inputs: dict[str, Any], words: str
) -> None:
    model = build_fp32(family, *changes.items())
    message = get_error_message(lambda: model(**inputs))
    missing = [word for word in words.split() if word.replace("~", " ") not in message]
    assert not missing, f"{missing} not in: {message}"
    assert len(message) < 200


# Unusual inputs that are valid.
VALID_INPUTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("bert", {}, dict(input_ids=IDS.int(), token_type_ids=IDS.int() * 0)),
    *((f, {}, dict(input_ids=IDS, token_type_ids=IDS * 0)) for f in ("distilbert", "llama", "modernbert")),
    ("bert", {}, dict(input_ids=IDS, attention_mask=MASK.long())),
    (
        "bert",
        {},
        dict(input_ids=tiny.random_ids(1, 70), attention_mask=torch.arange(70)[None] < 64),
    ),  # 64 tokens on 64 positions
    ("bert", {}, dict(input_ids=tiny.random_ids(1, 70), attention_mask=torch.arange(70)[None] >= 6)),
    ("bert", {}, dict(input_ids=IDS, attention_mask=MASK & False)),
    ("roberta", {}, dict(input_ids=tiny.random_ids(1, 58))),
    ("bert", {}, dict(input_ids=IDS, extra_outputs=["hidden_states"])),
    ("bert", CROSS_ATTENTION, dict(input_ids=IDS)),
    ("bart", {}, dict(encoder_hidden_states=STATES, decoder_input_ids=IDS)),
    ("bart", {}, dict(input_ids=IDS)),
    ("xlnet", {}, dict(input_ids=IDS, mems=MEMS[:, :, :0])),
    ("xlnet", {}, dict(input_ids=IDS, token_type_ids=IDS)),
    ("xlnet", {}, dict(input_ids=IDS, perm_mask=EYE.bool(), target_mapping=EYE.bool())),
    ("xlnet", {}, dict(input_ids=IDS, perm_mask=EYE.long(), target_mapping=EYE.long())),
    (
        "switch",
        {},
        dict(
            input_ids=IDS, decoder_input_ids=IDS, extra_outputs=("router_logits", "hidden_states")
        ),
    ),
    (
        "switch",
        dict(decoder_depth=1, num_sparse_decoder_layers=1),
        dict(input_ids=IDS, decoder_input_ids=IDS, extra_outputs=("router_logits",)),
    ),
    (
        "switch",
        dict(depth=2, num_sparse_encoder_layers=0),
        dict(input_ids=IDS, decoder_input_ids=IDS, extra_outputs=("router_logits",)),
    ),
    ("llama", {}, dict(input_ids=IDS, position_ids=IDS + 10_000)),
    ("clip", {}, dict(input_ids=IDS)),
    ("clip", {}, dict(input_ids=IDS[:1], pixel_values=PIXEL_VALUES)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("family", "changes", "inputs"), VALID_INPUTS, ids=range(len(VALID_INPUTS))
)
def test_unusual_inputs_are_valid(
    family: str, changes: dict[str, Any], inputs: dict[str, Any]
) -> None:
    out = build_fp32(family, *changes.items())(**inputs)
    assert out
    assert all(x.isfinite().all() for x in out.values())
