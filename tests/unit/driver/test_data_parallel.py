"""Compiled models under torch's DistributedDataParallel."""

from __future__ import annotations

import socket

import pytest
import torch.distributed as dist

from tests.unit.driver.data_parallel import train_in_processes


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch without gloo")
def test_gradients_are_those_of_eager_processes() -> None:
    train_in_processes(2, "gloo", "cpu", free_port())
