"""The workloads of `train_step.py` in JAX: one jitted program a step, of loss, gradients and AdamW's update.

Imported only where JAX is installed. Weights are those of the torch models, in torch's layout (out x in).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn

Params = dict[str, Any]


def linear(p: Params, name: str, x: Any) -> Any:
    """x Wᵀ + b."""
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def layer_norm(p: Params, name: str, x: Any) -> Any:
    """(x - mean) / sqrt(variance + 1e-5) · w + b over the last dimension."""
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def mlp(activation: Callable[[Any], Any], *layers: str) -> Callable[[Params, Any], Any]:
    """Dense layers of a `Sequential` with an activation in between."""

    def forward(p: Params, x: Any) -> Any:
        for name in layers[:-1]:
            x = activation(linear(p, name, x))
        return linear(p, layers[-1], x)

    return forward


def gpt(p: Params, tokens: Any) -> Any:
    """The model `SmallGPT`."""
    x = p["tokens.weight"][tokens] + p["places.weight"][: tokens.shape[1]]
    b, t, c = x.shape
    for n in ("blocks.0", "blocks.1"):
        q, k, v = (
            linear(p, f"{n}.qkv", layer_norm(p, f"{n}.first", x)).reshape(b, t, 3, 4, c // 4).transpose(2, 0, 3, 1, 4)
        )
        scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), q @ k.swapaxes(-1, -2) / (c // 4) ** 0.5, -jnp.inf)
        y = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(b, t, c)
        x = x + linear(p, f"{n}.out", y)
        x = x + linear(p, f"{n}.down", jax.nn.gelu(linear(p, f"{n}.up", layer_norm(p, f"{n}.second", x)), False))
    return linear(p, "head", layer_norm(p, "norm", x)).reshape(b * t, -1)


def many(p: Params, x: Any) -> Any:
    """The model `Many`."""
    for i in range(64):
        x = x * p[f"ws.{i}"]
    return x


MODELS: dict[str, Callable[[Params, Any], Any]] = {
    "ov_train": mlp(jax.nn.relu, "0", "2"),
    "ov_params": many,
    "small_mlp": mlp(jnp.tanh, "0", "2"),
    "digits_mlp": mlp(jax.nn.relu, "0", "2", "4"),
    "small_gpt": gpt,
}


def whole_step(name: str, model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
    """Give one step: parameters and AdamW's state are donated, the step waits for its loss."""
    forward = MODELS[name]
    params = {k: jax.device_put(v.detach().numpy().copy()) for k, v in model.named_parameters()}
    zeros = jax.tree.map(jnp.zeros_like, params)
    state: Any = (params, zeros, jax.tree.map(jnp.zeros_like, params), jnp.zeros(()))
    batch = tuple(jax.device_put(t.numpy().astype("int32") if t.dtype.itemsize == 8 else t.numpy()) for t in (x, y))

    def loss_of(p: Params, inputs: Any, target: Any) -> Any:
        logits = jax.nn.log_softmax(forward(p, inputs))
        return -jnp.take_along_axis(logits, target[:, None], 1).mean()

    def step(state: Any, inputs: Any, target: Any) -> Any:
        p, m, v, t = state
        lr, b1, b2, eps, decay = 1e-3, 0.9, 0.999, 1e-8, 1e-2
        loss, g = jax.value_and_grad(loss_of)(p, inputs, target)
        t = t + 1
        m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, m, g)
        v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, v, g)
        size, scale = lr / (1 - b1**t), jax.lax.rsqrt(1 - b2**t)
        p = jax.tree.map(lambda p, m, v: p * (1 - lr * decay) - size * m / (jnp.sqrt(v) * scale + eps), p, m, v)
        return loss, (p, m, v, t)

    compiled = jax.jit(step, donate_argnums=0)
    kept = [state]

    def run() -> Any:
        loss, kept[0] = compiled(kept[0], *batch)
        jax.block_until_ready(kept[0])
        return loss

    return run
