"""fairseq-train on a machine that says it has two GPUs, with ``--cpu``:

    python two_gpus.py '[["data-bin/X", "--arch", ...], ["data-bin/X", ...]]'

fairseq itself starts the two processes, for the first training; they do the others one after the other.

On a machine without GPUs it starts none, whatever the options: as many as there are GPUs, but no more than
``--distributed-world-size``. And its default ``--ddp-backend`` tells torch the GPU of each process, which torch refuses
for a model on the CPU. These two things are changed here, in the processes too, because each imports this file first.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any, List, Sequence

import torch
from fairseq import checkpoint_utils, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import distributed_fairseq_model
from fairseq_cli import train
from torch.nn.parallel import DistributedDataParallel


def on_cpu(*args: Any, device_ids: Any, output_device: Any, **options: Any) -> DistributedDataParallel:
    """torch's data parallel model, without a GPU."""
    return DistributedDataParallel(*args, **options)


torch.cuda.device_count = lambda: 2
distributed_fairseq_model.DistributedDataParallel = on_cpu


def configuration(arguments: Sequence[str]) -> Any:
    """fairseq's configuration of a training."""
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), list(arguments)))


def train_each(first: Any, others: List[Any]) -> None:
    """What each process does. There, ``train.main`` is fairseq's."""
    train.main(first)
    for cfg in others:
        checkpoint_utils.save_checkpoint.__dict__.clear()  # the best loss so far
        cfg.distributed_training = first.distributed_training
        train.main(cfg)


if __name__ == "__main__":
    commands = json.loads(sys.argv[1])
    sys.argv[1:] = commands[0]
    train.main = partial(train_each, others=[configuration(command) for command in commands[1:]])
    train.cli_main()
