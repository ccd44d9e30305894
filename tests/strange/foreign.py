"""Networks as others build them: by transformers, or in plain torch with what has broken a tool
before. Each builds a small one, in the code's own style, and what it is called with.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

Built = tuple[nn.Module, Any]
NETWORKS: dict[str, Callable[[], Built]] = {}


def network(build: Callable[[], Built]) -> Callable[[], Built]:
    """File a builder under its name."""
    NETWORKS[build.__name__] = build
    return build


def images(size: int = 64) -> Tensor:
    """Two pictures."""
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def tokens(*shape: int, among: int = 99) -> Tensor:
    """Numbers of tokens, without the first two, which often mean padding and an end."""
    return torch.randint(2, among - 1, shape, generator=torch.Generator().manual_seed(2))


# Plain torch.


class Tagger(nn.Module):
    """Words, a bidirectional LSTM, a tag for each."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 32)
        self.rnn = nn.LSTM(32, 64, 2, batch_first=True, bidirectional=True)
        self.mix, self.tags = nn.Linear(128, 64), nn.Linear(64, 9)

    def forward(self, words: Tensor) -> Tensor:
        return self.tags(torch.relu(self.mix(self.rnn(self.words(words))[0])))


@network
def lstm_tagger() -> Built:
    return Tagger(), tokens(2, 13)


@network
def lstm_of_160_steps() -> Built:
    """Beyond some length torch traces a kernel that takes float32 alone."""

    class Tones(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(5, 8, 2, batch_first=True)
            self.mix, self.head = nn.Linear(8, 32), nn.Linear(32, 3)

        def forward(self, x: Tensor) -> Tensor:
            _, (h, _) = self.rnn(x)
            return self.head(torch.relu(self.mix(h[-1])))

    return Tones(), torch.randn(2, 160, 5)


@network
def gru_ctc() -> Built:
    """A convolution over time, a GRU, logarithms of probabilities."""

    class Speech(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv1d(40, 64, 5, 2, 2), nn.BatchNorm1d(64)
            self.rnn, self.out = nn.GRU(64, 64, batch_first=True), nn.Linear(64, 30)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.norm(self.conv(x))).transpose(1, 2)
            return self.out(self.rnn(h)[0]).log_softmax(-1)

    return Speech(), torch.randn(2, 40, 50)


@network
def encoder_decoder() -> Built:
    """torch's own Transformer between embeddings of words and their scores."""

    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(50, 32), nn.Linear(32, 50)
            self.body = nn.Transformer(32, 4, 1, 1, 64, batch_first=True)

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            return self.out(self.body(self.words(source), self.words(target)))

    return Translator(), (tokens(2, 9, among=50), tokens(2, 7, among=50))


@network
def positions_in_float32() -> Built:
    """A grid of positions made in float32 in forward, as detectors add it."""

    class Places(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.place = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(2, 8, 1)
            self.mix, self.head = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            rows, columns = (torch.linspace(0, 1, n, dtype=torch.float32) for n in x.shape[-2:])
            grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij"))[None]
            return self.head(torch.relu(self.mix(torch.relu(self.conv(x) + self.place(grid)))))

    return Places(), images(16)


class UNet(nn.Module):
    """Ways up that are joined with the ways down, and a step of time as diffusion reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.time = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(8, 16)
        self.down = nn.Sequential(nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 32, 3, 2, 1))
        self.middle = nn.Sequential(nn.GroupNorm(4, 32), nn.SiLU(), nn.Conv2d(32, 32, 3, 1, 1))
        self.up = nn.Conv2d(48, 16, 3, padding=1)
        self.leave = nn.Sequential(nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 3, 1))

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        step = step * torch.ones(x.shape[0], dtype=step.dtype)
        waves = step[:, None].float() * torch.exp(-torch.arange(4) / 4)
        first = self.enter(x) + self.time(torch.cat([waves.sin(), waves.cos()], 1))[..., None, None]
        deep = F.interpolate(self.middle(self.down(first)), scale_factor=2.0, mode="nearest")
        return self.leave(torch.cat([self.up(torch.cat([deep, first], 1)), first], 1))


@network
def unet() -> Built:
    return UNet(), (images(16), torch.tensor([3, 3]))


@network
def unet_with_one_step() -> Built:
    """The step as a number for the whole batch, as its page calls it."""
    return UNet(), (images(16), torch.tensor(3))


@network
def scripted() -> Built:
    """Compiled by TorchScript."""
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    return torch.jit.script(net), torch.randn(2, 6)


@network
def masked_in_training() -> Built:
    """Some places are replaced by an embedding that only training reads."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)
            self.hidden = nn.Parameter(torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            if self.training:
                places = torch.arange(y.shape[1]) == 0
                y = torch.where(places[:, None], self.hidden, y)
            return self.last(self.norm(y))

    return Masked(), torch.randn(2, 3, 4)


@network
def vocoder() -> Built:
    """Convolutions whose weights are directions times norms."""
    first, second = weight_norm(nn.Conv1d(4, 16, 5, padding=2)), nn.Conv1d(16, 16, 3, padding=1)
    up = weight_norm(nn.ConvTranspose1d(16, 8, 4, 2, 1))
    last = weight_norm(nn.Conv1d(8, 1, 7, padding=3))
    slope = nn.LeakyReLU(0.1)
    return nn.Sequential(first, slope, second, slope, up, slope, last, nn.Tanh()), torch.randn(
        2, 4, 20
    )


class Neighbours(nn.Module):
    """A network on a graph: its first dimension counts nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        h = torch.relu(self.first(nodes))
        h = torch.zeros_like(h).index_add(0, edges[1], h[edges[0]])
        return self.last(torch.relu(self.second(h)))


@network
def graph_network() -> Built:
    return Neighbours(), (torch.randn(20, 6), tokens(2, 60, among=20))


@network
def graph_network_in_a_batch() -> Built:
    """The same with one dimension more in front, as the refusal of the other advises."""

    class Batched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Neighbours()

        def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
            return self.inner(nodes[0], edges[0])[None]

    return Batched(), (torch.randn(1, 20, 6), tokens(1, 2, 60, among=20))


@network
def own_experts() -> Built:
    """A gate chooses one of four experts by a loop over them, as people write it."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.gate, self.leave = nn.Linear(6, 16), nn.Linear(16, 4), nn.Linear(16, 3)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(4)
            )

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.enter(x))
            share, chosen = self.gate(h).softmax(-1).max(-1)
            mixed = torch.zeros_like(h)
            for number, expert in enumerate(self.experts):
                mixed[chosen == number] = expert(h[chosen == number])
            return self.leave(h + share[:, None] * mixed)

    return Experts(), torch.randn(8, 6)


# transformers, small and freshly drawn. Imported where it is needed: the extra may be missing.


@network
def hf_mamba() -> Built:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, state_size=8)
    return MambaForCausalLM(config), {"input_ids": tokens(2, 12)}


@network
def hf_qwen2_moe() -> Built:
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    config = Qwen2MoeConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=48,
        num_experts=4,
        num_experts_per_tok=2,
    )
    return Qwen2MoeForCausalLM(config), {"input_ids": tokens(2, 12)}


@network
def hf_wav2vec2() -> Built:
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    config = Wav2Vec2Config(
        vocab_size=32,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        conv_dim=(32, 32, 32),
        conv_stride=(5, 4, 4),
        conv_kernel=(10, 8, 4),
        num_feat_extract_layers=3,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
    )
    return Wav2Vec2ForCTC(config), torch.randn(2, 4000)


@network
def hf_detr() -> Built:
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 1, 1],
        out_features=["stage4"],
    )
    config = DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        num_queries=10,
        num_labels=5,
    )
    return DetrForObjectDetection(config), images()


@network
def hf_segformer() -> Built:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 48, 64], decoder_hidden_size=32, num_labels=5
    )
    return SegformerForSemanticSegmentation(config), images()


@network
def hf_clip() -> Built:
    from transformers import CLIPConfig, CLIPModel

    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    text = {
        **sizes,
        "vocab_size": 99,
        "max_position_embeddings": 20,
        "eos_token_id": 98,
        "pad_token_id": 0,
        "bos_token_id": 1,
    }
    config = CLIPConfig(
        text_config=text,
        vision_config={**sizes, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    return CLIPModel(config), {"input_ids": tokens(2, 8), "pixel_values": images(32)}


@network
def hf_marian() -> Built:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=99,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        pad_token_id=0,
        decoder_start_token_id=0,
        eos_token_id=1,
        max_position_embeddings=64,
    )
    example = {"input_ids": tokens(2, 9), "decoder_input_ids": tokens(2, 7)}
    return MarianMTModel(config), example
