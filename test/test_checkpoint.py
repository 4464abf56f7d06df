"""Weights come back as they were, strangers are refused by name, and public weights mean here what they meant there."""

import dataclasses
import hashlib
import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tiny_net import random_actions, tiny_config, tiny_inputs, tiny_net

from reflectdrive_ros.model.checkpoint import CheckpointError, load, save
from reflectdrive_ros.model.layers import TransformerConfig
from reflectdrive_ros.model.pretrained import load_qwen3, load_siglip
from reflectdrive_ros.model.vision import VisionConfig


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def rewritten(path, change):
    """The file with its tensors and metadata changed, and the hash that it has now."""
    with safe_open(path, "pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    change(tensors, metadata)
    save_file(tensors, path, metadata)
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- our own ---------------------------------------------------------------------------------------------------------


def test_a_network_comes_back_with_its_configuration(tmp_path):
    net = tiny_net(words=("go", "left"))
    path = tmp_path / "model" / "weights.safetensors"
    sha256 = save(net, path, {"seed": 7}, torch.float32)
    again = load(path, sha256)
    assert again.config == net.config
    assert not again.training
    inputs, actions = tiny_inputs(net), random_actions(net)
    torch.testing.assert_close(again.packed_logits(inputs, actions), net.packed_logits(inputs, actions), atol=0, rtol=0)
    card = json.loads((path.parent / "card.json").read_text())
    assert card["sha256"] == sha256
    assert card["seed"] == 7
    assert card["parameters"] == sum(part.numel() for part in net.parameters())
    assert not list(path.parent.glob("*.part"))


def test_the_same_weights_make_the_same_file(tmp_path):
    assert save(tiny_net(1), tmp_path / "a.safetensors", {}) == save(tiny_net(1), tmp_path / "b.safetensors", {})
    assert save(tiny_net(2), tmp_path / "c.safetensors", {}) != save(tiny_net(1), tmp_path / "b.safetensors", {})


def test_another_hash_is_refused(tmp_path):
    path = tmp_path / "weights.safetensors"
    sha256 = save(tiny_net(), path, {})
    assert load(path, sha256.upper()).config == tiny_config()
    with pytest.raises(CheckpointError, match=f"has SHA-256 {sha256}, expected 0000"):
        load(path, "0" * 64)
    with pytest.raises(CheckpointError, match=r"nothing\.safetensors cannot be read: No such file"):
        load(tmp_path / "nothing.safetensors", sha256)


def change_config(values):
    def change(tensors, metadata):
        (name,) = metadata
        config = json.loads(metadata[name])
        values(config)
        metadata[name] = json.dumps(config)

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda t, m: t.pop("slot"), "lacks slot and has unexpected nothing"),
        (lambda t, m: t.update(slot=torch.zeros(15, 32)), r"slot has shape \(15, 32\), expected \(16, 32\)"),
        (lambda t, m: t["norm.weight"].fill_(float("nan")), "NaN or infinity in norm.weight"),
        (lambda t, m: m.update({"reflectdrive.token_net.0": m.popitem()[1]}), r"expected weights of the format .*t\.4"),
        (lambda t, m: m.update({"reflectdrive.token_net.4": "[" * 100_000}), "carries nests deeper than 64 levels"),
        (change_config(lambda c: c.update(colour="red")), r"unknown \['colour'\]"),
        (change_config(lambda c: c["transformer"].pop("heads")), r"carries has no transformer\.heads"),
        (change_config(lambda c: c.update(cameras="3")), "carries has cameras = '3', expected a whole number"),
        (change_config(lambda c: c.update(text_length=10**9)), "has text_length = 1000000000, expected a whole number"),
        (change_config(lambda c: c.update(ego_scale=[1.0, 0.0, 1.0])), r"has ego_scale\[1\] = 0\.0, expected a finite"),
        (
            change_config(lambda c: c["layout"]["axes"][0].update(bin=float("nan"))),
            r"has layout.axes\[0\].bin = nan, expected a finite number",
        ),
        (change_config(lambda c: c["layout"].update(goal=[3, 4])), r"TokenLayout.goal is \(3, 4\), expected the pos"),
        (
            change_config(lambda c: c["transformer"].update(width=1 << 16, ffn=1 << 16, layers=256)),
            r"lacks layers\.10\.",
        ),
        (change_config(lambda c: c["transformer"].update(kv_heads=3)), "expected a multiple of kv_heads"),
    ],
)
def test_weights_and_configuration_that_do_not_fit_are_refused_by_name(tmp_path, change, complaint):
    path = tmp_path / "weights.safetensors"
    save(tiny_net(), path, {}, torch.float32)
    sha256 = rewritten(path, change)
    with pytest.raises(CheckpointError, match=complaint):
        load(path, sha256)


@pytest.mark.parametrize("content", [b"", b"not tensors at all", (1 << 60).to_bytes(8, "little") + b"{}"])
def test_what_is_no_safetensors_file_is_refused(tmp_path, content):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="is not a safetensors file"):
        load(path, hashlib.sha256(content).hexdigest())


# --- public weights --------------------------------------------------------------------------------------------------

QWEN = TransformerConfig(
    width=32, layers=3, heads=4, kv_heads=2, head_dim=16, ffn=48, action_ffn=20, rope_theta=1e6, norm_eps=1e-6
)
SIGLIP = VisionConfig(
    height=64, width=64, patch=16, frames=1, stem=(), channels=24, layers=2, heads=3, ffn=40, norm_eps=1e-6
)


def shaken(model):
    """Random weights everywhere, norms and biases too: a beginning of ones and zeros hides what is mixed up."""
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator) + (parameter.dim() == 1))
    return model.eval()


@pytest.fixture
def qwen(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (pip install -e .[dev])")
    config = transformers.Qwen3Config(
        vocab_size=40,
        hidden_size=QWEN.width,
        intermediate_size=QWEN.ffn,
        num_hidden_layers=QWEN.layers,
        num_attention_heads=QWEN.heads,
        num_key_value_heads=QWEN.kv_heads,
        head_dim=QWEN.head_dim,
        rope_theta=QWEN.rope_theta,
        rms_norm_eps=QWEN.norm_eps,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    model = shaken(transformers.Qwen3ForCausalLM(config))
    model.save_pretrained(tmp_path / "qwen", safe_serialization=True)
    return model, tmp_path / "qwen"


@pytest.fixture
def siglip(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (pip install -e .[dev])")
    config = transformers.SiglipConfig(
        vision_config={
            "hidden_size": SIGLIP.channels,
            "intermediate_size": SIGLIP.ffn,
            "num_hidden_layers": SIGLIP.layers,
            "num_attention_heads": SIGLIP.heads,
            "image_size": SIGLIP.height,
            "patch_size": SIGLIP.patch,
        },
        text_config={"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 3},
    )
    model = shaken(transformers.SiglipModel(config))
    model.save_pretrained(tmp_path / "siglip", safe_serialization=True)
    return model, tmp_path / "siglip"


def net_like(**changes):
    settings = {"vision": SIGLIP, "transformer": QWEN, "text_vocabulary": 40, **changes}
    return tiny_net(**settings)


def text_logits(net, ids):
    """The language model on its own: causal, full FFN, tied head."""
    x, count = net.embed_tokens(ids), ids.shape[1]
    causal = torch.ones(count, count).tril().bool()
    for layer in net.layers:
        x, _ = layer(x, count, causal, net.cos[:count], net.sin[:count])
    return net.norm(x) @ net.embed_tokens.weight.T


def test_qwen3_says_here_what_it_says_in_transformers(qwen):
    model, folder = qwen
    net = net_like(text_length=20)
    load_qwen3(net, folder)
    ids = torch.randint(0, 40, (2, 19), generator=torch.Generator().manual_seed(0))
    logits = model(ids).logits
    assert logits.std() > 0.1
    torch.testing.assert_close(text_logits(net, ids), logits, atol=1e-4, rtol=1e-4)


def test_a_network_with_words_of_its_own_begins_with_what_the_language_model_knows_of_them(qwen):
    model, folder = qwen
    words = ("<pad>", "left", "roundabout", "right")
    net, random = (net_like(words=words, text_vocabulary=6) for _ in range(2))
    with pytest.raises(CheckpointError, match=r"vocab\.json is not the vocabulary of the weights beside it"):
        load_qwen3(net, folder)
    (folder / "vocab.json").write_text(json.dumps({"\u0120left": 7, "left": 8, "right": 39, "round": 3}))
    load_qwen3(net, folder)
    embeddings = model.model.embed_tokens.weight
    assert net.embed_tokens.weight[[1, 3]].equal(embeddings[[7, 39]])
    assert net.embed_tokens.weight[[0, 2, 4, 5]].equal(random.embed_tokens.weight[[0, 2, 4, 5]])
    assert net.layers[0].mlp.gate_proj.weight.equal(model.model.layers[0].mlp.gate_proj.weight)
    (folder / "vocab.json").write_text(json.dumps({"left": 40}))
    with pytest.raises(CheckpointError, match="is not the vocabulary of the weights beside it: index 40"):
        load_qwen3(net, folder)


def test_siglip2_sees_here_what_it_sees_in_transformers(siglip):
    model, folder = siglip
    net = net_like()
    load_siglip(net, folder)
    images = torch.randint(0, 256, (3, 64, 64, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    pixels = (images.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
    expected = model.vision_model(pixels).last_hidden_state
    torch.testing.assert_close(net.vision(images[:, None]), expected, atol=1e-4, rtol=1e-4)


def test_the_action_ffn_begins_as_the_strongest_channels(qwen):
    model, folder = qwen
    net = net_like()
    load_qwen3(net, folder)
    for layer, theirs in zip(net.layers, model.model.layers, strict=True):
        gate = theirs.mlp.gate_proj.weight
        channels = sorted(sorted(range(QWEN.ffn), key=lambda row, gate=gate: -gate[row].norm())[: QWEN.action_ffn])
        assert layer.action_mlp.gate_proj.weight.equal(gate[channels])
        assert layer.action_mlp.up_proj.weight.equal(theirs.mlp.up_proj.weight[channels])
        assert layer.action_mlp.down_proj.weight.equal(theirs.mlp.down_proj.weight[:, channels])
    # with all channels kept, an action token is treated as a word is
    whole = net_like(transformer=dataclasses.replace(QWEN, action_ffn=QWEN.ffn))
    load_qwen3(whole, folder)
    x = torch.randn(1, 4, QWEN.width, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(whole.layers[0].action_mlp(x), whole.layers[0].mlp(x))


def test_weights_in_several_files_are_read_by_their_index(qwen, tmp_path):
    model, folder = qwen
    model.save_pretrained(tmp_path / "sharded", safe_serialization=True, max_shard_size="20KB")
    assert (tmp_path / "sharded" / "model.safetensors.index.json").exists()
    whole, parts = net_like(), net_like()
    load_qwen3(whole, folder)
    load_qwen3(parts, tmp_path / "sharded")
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))


def test_a_language_model_of_other_measures_is_refused_by_name(qwen):
    _, folder = qwen
    for change, complaint in (
        ({"heads": 2, "kv_heads": 2}, "num_attention_heads is 4, expected 2"),
        ({"rope_theta": 1e4}, "rope_theta is 1000000.0, expected 10000.0"),
        ({"layers": 2}, "num_hidden_layers is 3, expected 2"),
    ):
        with pytest.raises(CheckpointError, match=complaint):
            load_qwen3(net_like(transformer=dataclasses.replace(QWEN, **change)), folder)
    with pytest.raises(CheckpointError, match="vocab_size is 40, expected 41"):
        load_qwen3(net_like(text_vocabulary=41), folder)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda t, m: t.pop("model.layers.1.self_attn.q_norm.weight"), r"lacks layers\.1\.self_attn\.q_norm\.weight"),
        (lambda t, m: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}), r"unexpected .*q_proj\.b"),
        (lambda t, m: t.update({"model.norm.weight": torch.zeros(31)}), r"norm\.weight has shape \(31,\)"),
    ],
)
def test_a_language_model_with_other_tensors_is_refused_by_name(qwen, change, complaint):
    _, folder = qwen
    rewritten(folder / "model.safetensors", change)
    with pytest.raises(CheckpointError, match=complaint):
        load_qwen3(net_like(), folder)


def test_a_visual_encoder_with_other_tensors_or_measures_is_refused_by_name(siglip):
    _, folder = siglip
    with pytest.raises(CheckpointError, match="image_size is 64, expected 96"):
        load_siglip(net_like(vision=dataclasses.replace(SIGLIP, height=96, width=96)), folder)
    with pytest.raises(CheckpointError, match="without a stem"):
        load_siglip(net_like(vision=dataclasses.replace(SIGLIP, stem=(8,))), folder)
    rewritten(
        folder / "model.safetensors",
        lambda t, m: t.update({"vision_model.rings": torch.zeros(1)}) or t.pop("vision_model.post_layernorm.bias"),
    )
    with pytest.raises(CheckpointError, match=r"lacks post_layernorm\.bias and has unexpected rings"):
        load_siglip(net_like(), folder)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        load_qwen3(tiny_net(), tmp_path)
