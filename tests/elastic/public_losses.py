"""Losses of torch and of public training scripts, as functions of a batch's samples.

Each is written as its scripts have it, over a small model in float64 without chance. Whether it is
a mean or a sum over the samples is measured: by the gradients of a batch and of its parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

BATCH, SHARE, WIDTH = 12, 6, 5


class Net(nn.Module):
    """A linear layer, a convolution and two weights of losses."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.grid = nn.Linear(8, WIDTH), nn.Conv2d(3, WIDTH, 3, padding=1)
        self.scale = nn.Parameter(torch.tensor([0.3, -0.2]))

    def out(self, given: Tensor) -> Tensor:
        return functional.linear(given, self.main.weight, self.main.bias)

    def pixels(self, given: Tensor) -> Tensor:
        return functional.conv2d(given, self.grid.weight, self.grid.bias, padding=1)


Loss = Callable[[Net, Tensor], Tensor]

_draw = torch.Generator().manual_seed(5)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=_draw, dtype=torch.float64)


x, target, other = drawn(BATCH, 8), drawn(BATCH, WIDTH), drawn(BATCH, WIDTH)
labels = torch.randint(0, WIDTH, (BATCH,), generator=_draw)
padded = torch.tensor([2, -100, 1, 0, 3, 4, -100, -100, 1, 2, 0, -100])
signs = torch.sign(drawn(BATCH))
grid, grid_labels = drawn(BATCH, 3, 4, 4), torch.randint(0, WIDTH, (BATCH, 4, 4), generator=_draw)
lengths = torch.tensor([3, 1, 4, 2, 2, 4, 1, 3, 4, 2, 1, 3])
mask = (torch.arange(4) < lengths[:, None]).double()
series, series_labels = drawn(BATCH, 4, 8), torch.randint(0, WIDTH, (BATCH, 4), generator=_draw)
weights = torch.rand(WIDTH, generator=_draw, dtype=torch.float64) + 0.1
matrix = drawn(WIDTH, 3)


def model() -> Net:
    torch.manual_seed(1)
    return Net().double()


def added(terms: Iterable[Tensor]) -> Tensor:
    """Add up as scripts do, beginning with 0."""
    return cast("Tensor", sum(terms))


def _on_output(loss: Callable[[Tensor, Tensor], Tensor], net: Net, i: Tensor) -> Tensor:
    return loss(net.out(x[i]), i)


def of_torch(reduction: str) -> Iterator[tuple[str, Loss]]:
    """Yield torch's own loss functions with this reduction."""
    f = functional
    how: dict[str, Any] = {"reduction": reduction}
    table: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "l1": lambda o, i: f.l1_loss(o, target[i], **how),
        "mse": lambda o, i: f.mse_loss(o, target[i], **how),
        "huber": lambda o, i: f.huber_loss(o, target[i], **how),
        "smooth l1": lambda o, i: f.smooth_l1_loss(o, target[i], **how),
        "cross entropy": lambda o, i: f.cross_entropy(o, labels[i], **how),
        "cross entropy, smoothed": lambda o, i: f.cross_entropy(
            o, labels[i], label_smoothing=0.1, **how
        ),
        "cross entropy, class weights": lambda o, i: f.cross_entropy(
            o, labels[i], weight=weights, **how
        ),
        "cross entropy, ignored": lambda o, i: f.cross_entropy(o, padded[i], **how),
        "cross entropy, probabilities": lambda o, i: f.cross_entropy(
            o, target[i].softmax(1), **how
        ),
        "nll": lambda o, i: f.nll_loss(o.log_softmax(1), labels[i], **how),
        "poisson": lambda o, i: f.poisson_nll_loss(o, target[i].abs(), **how),
        "gaussian": lambda o, i: f.gaussian_nll_loss(o, target[i], other[i].abs() + 0.1, **how),
        "kl": lambda o, i: f.kl_div(o.log_softmax(1), target[i].softmax(1), **how),
        "bce": lambda o, i: f.binary_cross_entropy(o.sigmoid(), target[i].sigmoid(), **how),
        "bce logits": lambda o, i: f.binary_cross_entropy_with_logits(
            o, target[i].sigmoid(), pos_weight=weights, **how
        ),
        "margin ranking": lambda o, i: f.margin_ranking_loss(o[:, 0], o[:, 1], signs[i], **how),
        "hinge embedding": lambda o, i: f.hinge_embedding_loss(o[:, 0], signs[i], **how),
        "multilabel margin": lambda o, i: f.multilabel_margin_loss(
            o, torch.stack([labels[i], -torch.ones_like(i)], 1).repeat(1, 3)[:, :WIDTH], **how
        ),
        "soft margin": lambda o, i: f.soft_margin_loss(o[:, 0], signs[i], **how),
        "multilabel soft margin": lambda o, i: f.multilabel_soft_margin_loss(
            o, (target[i] > 0).double(), **how
        ),
        "cosine": lambda o, i: f.cosine_embedding_loss(o, target[i], signs[i], **how),
        "multi margin": lambda o, i: f.multi_margin_loss(o, labels[i], **how),
        "triplet": lambda o, i: f.triplet_margin_loss(o, target[i], other[i], **how),
        "ctc": lambda o, i: f.ctc_loss(
            (o[None] * drawn_steps[:, None]).log_softmax(2),
            labels[i, None] % (WIDTH - 1) + 1,
            torch.full_like(i, 4),
            torch.ones_like(i),
            **how,
        ),
    }
    for name, loss in table.items():
        yield f"{name}, {reduction}", partial(_on_output, loss)
    yield (
        f"cross entropy of pixels, {reduction}",
        lambda net, i: f.cross_entropy(net.pixels(grid[i]), grid_labels[i], **how),
    )


drawn_steps = drawn(4, WIDTH)


def tokens(net: Net, i: Tensor) -> Tensor:
    """Return the loss of each token."""
    logits = net.out(series[i])
    return functional.cross_entropy(logits.transpose(1, 2), series_labels[i], reduction="none")


def vae(net: Net, i: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    out = net.out(x[i])
    mean, log_variance = out[:, :2], out[:, 2:4]
    made = (mean + other[i, :2] * (0.5 * log_variance).exp()) @ matrix[:2]
    return made, mean, log_variance


def recon_and_kl(net: Net, i: Tensor) -> tuple[Tensor, Tensor]:
    made, mean, log_variance = vae(net, i)
    apart = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp())
    return functional.mse_loss(made, target[i, :3], reduction="none"), apart


def focal(net: Net, i: Tensor) -> Tensor:
    each = functional.cross_entropy(net.out(x[i]), labels[i], reduction="none")
    return (1 - (-each).exp()) ** 2 * each


def features(net: Net, i: Tensor) -> Tensor:
    return functional.normalize(net.out(x[i]), dim=1)


def contrastive(net: Net, i: Tensor) -> Tensor:
    logits = features(net, i) @ functional.normalize(target[i], dim=1).T / 0.1
    return functional.cross_entropy(logits, torch.arange(len(i)))


def barlow(net: Net, i: Tensor) -> Tensor:
    a, b = features(net, i), target[i]
    c = (a - a.mean(0)).T @ (b - b.mean(0)) / len(i)
    on = (c.diagonal() - 1).pow(2).sum()
    return on + 0.005 * (c - torch.diag(c.diagonal())).pow(2).sum()


def dice(net: Net, i: Tensor) -> Tensor:
    found, true = net.out(x[i]).sigmoid(), (target[i] > 0).double()
    return 1 - (2 * (found * true).sum() + 1) / (found.sum() + true.sum() + 1)


def cox(net: Net, i: Tensor) -> Tensor:
    risk = net.out(x[i])[:, 0]
    return -(risk - torch.logcumsumexp(risk, 0)).mean()


def ppo(net: Net, i: Tensor) -> Tensor:
    policy = torch.distributions.Categorical(logits=net.out(x[i]))
    ratio = (policy.log_prob(labels[i]) + math.log(WIDTH)).exp()
    gain = other[i, 0]
    value = functional.mse_loss(net.out(x[i])[:, 0], target[i, 0])
    clipped: Tensor = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
    surprise: Tensor = policy.entropy().mean()
    return -clipped + 0.5 * value - 0.01 * surprise


def reinforce(net: Net, i: Tensor) -> Tensor:
    policy = torch.distributions.Categorical(logits=net.out(x[i]))
    each = [-p * r for p, r in zip(policy.log_prob(labels[i]), other[i, 0], strict=True)]
    return torch.stack(each).sum()


def distilled(net: Net, i: Tensor) -> Tensor:
    out, hot = net.out(x[i]), 3.0
    soft = functional.kl_div(
        (out / hot).log_softmax(1), (target[i] / hot).softmax(1), reduction="batchmean"
    )
    return 0.7 * soft * hot**2 + 0.3 * functional.cross_entropy(out, labels[i])


def uncertain(net: Net, i: Tensor) -> Tensor:
    out = net.out(x[i])
    a, b = functional.mse_loss(out, target[i]), functional.cross_entropy(out, labels[i])
    s = net.scale
    return (-s[0]).exp() * a + s[0] + (-s[1]).exp() * b + s[1]


def penalty(net: Net, i: Tensor) -> Tensor:
    at = x[i].clone().requires_grad_()
    made = net.out(at).pow(2).sum(1)
    (slope,) = torch.autograd.grad(made.sum(), at, create_graph=True)
    steepness: Tensor = (slope.norm(2, dim=1) - 1).pow(2).mean()
    return made.mean() + 10 * steepness


def loop(net: Net, i: Tensor) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for one in i:
        total = total + functional.mse_loss(net.out(x[one]), target[one])
    return total


class Squares(torch.autograd.Function):
    """A fused loss, as kernels of extensions are."""

    @staticmethod
    def forward(ctx: Any, given: Tensor) -> Tensor:
        ctx.save_for_backward(given)
        return given.pow(2).sum()

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Tensor:
        (given,) = ctx.saved_tensors
        return cast("Tensor", 2 * given * above)


def squares(given: Tensor) -> Tensor:
    return cast("Tensor", Squares.apply(given))  # type: ignore[no-untyped-call]


def of_scripts() -> Iterator[tuple[str, Loss]]:
    """Yield losses as public training scripts write them."""
    f = functional
    yield "VAE, sums (pytorch/examples)", lambda n, i: added(t.sum() for t in recon_and_kl(n, i))
    yield "VAE, sums / len(x)", lambda n, i: added(t.sum() / len(i) for t in recon_and_kl(n, i))
    yield (
        "beta-VAE, mean of sums",
        lambda n, i: added(t.sum(1).mean() * b for t, b in zip(recon_and_kl(n, i), (1, 4))),  # noqa: B905
    )
    yield (
        "VAE, mean plus sum",
        lambda n, i: recon_and_kl(n, i)[0].mean() + recon_and_kl(n, i)[1].sum(),
    )
    yield "focal, mean", lambda n, i: focal(n, i).mean()
    yield (
        "focal, sum (RetinaNet / positives)",
        lambda n, i: focal(n, i).sum() / (labels[i] > 1).sum().clamp(min=1),
    )
    yield (
        "DETR, sum / boxes",
        lambda n, i: (
            f.l1_loss(n.out(x[i]), target[i], reduction="none").sum() / int(lengths[i].sum())
        ),
    )
    yield (
        "YOLOv3, sum / batch constant",
        lambda n, i: f.mse_loss(n.out(x[i]), target[i], reduction="sum") / BATCH,
    )
    yield "sum / len(x)", lambda n, i: f.mse_loss(n.out(x[i]), target[i], reduction="sum") / len(i)
    yield "half a sum", lambda n, i: 0.5 * (n.out(x[i]) - target[i]).pow(2).sum()
    yield "mean / accumulation", lambda n, i: f.cross_entropy(n.out(x[i]), labels[i]) / 4
    yield "mean * len(x)", lambda n, i: f.cross_entropy(n.out(x[i]), labels[i]) * len(i)
    yield (
        "nanoGPT",
        lambda n, i: f.cross_entropy(
            n.out(series[i]).view(-1, WIDTH), series_labels[i].view(-1), ignore_index=-1
        ),
    )
    yield "seq2seq, masked mean", lambda n, i: (tokens(n, i) * mask[i]).sum() / mask[i].sum()
    yield "seq2seq, selected mean", lambda n, i: tokens(n, i)[mask[i] > 0].mean()
    yield "fairseq, sum of tokens", lambda n, i: (tokens(n, i) * mask[i]).sum()
    yield "mean of sequences' sums", lambda n, i: (tokens(n, i) * mask[i]).sum(1).mean()
    yield (
        "mean of sequences' means",
        lambda n, i: ((tokens(n, i) * mask[i]).sum(1) / lengths[i]).mean(),
    )
    yield "tokens' mean, summed over time", lambda n, i: tokens(n, i).mean(0).sum()
    yield (
        "DCGAN",
        lambda n, i: f.binary_cross_entropy_with_logits(
            n.out(x[i])[:, 0], torch.ones(len(i)).double()
        ),
    )
    yield (
        "LSGAN, halves",
        lambda n, i: 0.5 * ((n.out(x[i]) - 1).pow(2).mean() + n.out(x[i]).pow(2).mean()),
    )
    yield "WGAN", lambda n, i: -n.out(x[i])[:, 0].mean() + n.out(x[i])[:, 1].mean()
    yield "WGAN-GP", penalty
    yield "DDPM", lambda n, i: (n.out(x[i]) - target[i]).square().mean()
    yield "PPO", ppo
    yield "REINFORCE, stack().sum()", reinforce
    yield (
        "DQN",
        lambda n, i: f.smooth_l1_loss(n.out(x[i]).gather(1, labels[i, None]), target[i, :1]),
    )
    yield "distillation", distilled
    yield "uncertainty weights (Kendall)", uncertain
    yield (
        "L2 penalty, mean",
        lambda n, i: (
            f.cross_entropy(n.out(x[i]), labels[i])
            + 1e-2 * added(p.pow(2).sum() for p in n.parameters())
        ),
    )
    yield (
        "L1 penalty, mean",
        lambda n, i: (
            f.cross_entropy(n.out(x[i]), labels[i])
            + 1e-2 * added(p.abs().sum() for p in n.parameters())
        ),
    )
    yield (
        "L2 penalty, norm",
        lambda n, i: f.cross_entropy(n.out(x[i]), labels[i]) + 1e-2 * n.main.weight.norm(),
    )
    yield (
        "L2 penalty, sum",
        lambda n, i: (
            f.cross_entropy(n.out(x[i]), labels[i], reduction="sum")
            + 1e-2 * n.main.weight.pow(2).sum()
        ),
    )
    yield (
        "ArcFace",
        lambda n, i: f.cross_entropy(
            8 * (features(n, i) @ f.normalize(matrix, dim=0) - 0.1 * f.one_hot(labels[i] % 3, 3)),
            labels[i] % 3,
        ),
    )
    yield (
        "center loss",
        lambda n, i: (
            (n.out(x[i]) - target[labels[i]]).pow(2).sum(1).clamp(1e-12, 1e12).sum() / len(i)
        ),
    )
    yield "log-cosh", lambda n, i: (n.out(x[i]) - target[i]).cosh().log().mean()
    yield (
        "quantile",
        lambda n, i: torch.max(
            0.9 * (target[i] - n.out(x[i])), 0.1 * (n.out(x[i]) - target[i])
        ).mean(),
    )
    yield (
        "mean of two tasks",
        lambda n, i: torch.stack(
            [f.mse_loss(n.out(x[i]), target[i]), f.cross_entropy(n.out(x[i]), labels[i])]
        ).mean(),
    )
    yield "per-sample loop, sum", loop
    yield "per-sample loop, mean", lambda n, i: loop(n, i) / len(i)
    yield (
        "total variation",
        lambda n, i: (
            n.pixels(grid[i]).diff(dim=3).abs().sum() + n.pixels(grid[i]).diff(dim=2).abs().sum()
        ),
    )
    yield "function of its own, sum", lambda n, i: squares(n.out(x[i]))
    yield (
        "mean plus a function of its own",
        lambda n, i: n.out(x[i]).pow(2).mean() + squares(n.out(x[i])),
    )
    yield (
        "mean plus what saves nothing",
        lambda n, i: n.out(x[i]).pow(2).mean() + (n.main.bias + target[i]).sum(),
    )
    yield "einsum", lambda n, i: torch.einsum("bi,bi->", n.out(x[i]), target[i])
    yield "RMSE", lambda n, i: f.mse_loss(n.out(x[i]), target[i]).sqrt()
    yield "Dice", dice
    yield "InfoNCE", contrastive
    yield "Barlow Twins", barlow
    yield "Cox", cox


def all_losses() -> dict[str, Loss]:
    """Return all of them by name."""
    return {**dict(of_torch("mean")), **dict(of_torch("sum")), **dict(of_scripts())}


def gradient(loss: Loss, samples: Tensor) -> Tensor:
    net = model()
    loss(net, samples).backward()
    return torch.cat(
        [
            torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
            for p in net.parameters()
        ]
    )


def truth(loss: Loss) -> str:
    """Return what the loss is by its gradients: mean, sum, or neither."""
    parts = torch.arange(BATCH).split([SHARE, BATCH - SHARE - 2, 2])
    whole, found = gradient(loss, torch.arange(BATCH)), [gradient(loss, part) for part in parts]
    if _is_close(whole, added(g * len(p) / BATCH for g, p in zip(found, parts, strict=True))):
        return "mean"
    return "sum" if _is_close(whole, added(found)) else "neither"


def _is_close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-9, atol=1e-12)
