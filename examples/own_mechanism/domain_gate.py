"""A mechanism of your own in one file: a gate between the source context and the domain of the sentence.

With s the source context of a decoder layer, t what attention reads of the target, and d an embedding of the domain,

    z = σ(W [t; d] + b),   s' = (1 - z) ⊙ s + z ⊙ d

The domain is a number for each sentence, in a side stream, which this file makes when it is run as a command.
"""

from dataclasses import dataclass, field
from typing import Any, Dict, Tuple

import numpy as np
import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_ctxgates.command_line import find_data, make_data_parser, match_files_to_splits, split_and_files
from fairseq_ctxgates.data.data_directory import fingerprint
from fairseq_ctxgates.data.side_stream import SideStream
from fairseq_ctxgates.data.side_stream_files import write_side_stream
from fairseq_ctxgates.errors import UserError, exit_on_user_error
from fairseq_ctxgates.mechanism import RNNSEARCH, TRANSFORMER, EncoderInput, Mechanism
from fairseq_ctxgates.modules.interpolation import interpolate
from fairseq_ctxgates.parts import Part, RecurrentSourcePart, Returned, SourceContextPart


@dataclass
class DomainOptions(FairseqDataclass):
    domain_gate: bool = field(default=False, metadata={"help": "add the domain of a sentence through a gate"})
    domains: int = field(default=8, metadata={"help": "number of domains"})
    ignore_domain: bool = field(default=False, metadata={"help": "ablation: every sentence has domain 0"})


@dataclass
class DomainStreamOptions(FairseqDataclass):
    interactive_domain: int = field(default=0, metadata={"help": "fairseq-interactive: the domain of all lines"})


class Domains(SideStream[DomainStreamOptions]):
    """Adds ``net_input["domain"]``, (batch,). A row of the stream is one number, from 0."""

    name, made_by = "domain", "python examples/own_mechanism/domain_gate.py {data} -s {source} -t {target} --domains"
    languages, inputs, Config = ("source",), ("domain",), DomainStreamOptions

    @classmethod
    def is_wanted(cls, options: DomainStreamOptions, required: Any) -> bool:
        return cls.name in required

    @classmethod
    def from_interactive_lines(
        cls, dataset: Any, _: Any, options: Any, task_options: Any, context_size: int = 1
    ) -> "Domains":
        return cls([[options.interactive_domain]] * len(dataset), dataset, options, task_options)

    def add_to_batch(self, batch: Dict[str, Any]) -> None:
        batch["net_input"]["domain"] = torch.tensor([int(self.rows[row][0]) for row in batch["id"].tolist()])


class DomainGate(Part):
    """The equations. The gate is nearly closed at first, so that a warm start begins near the baseline."""

    gates = ("domain_gates",)

    def __init__(self, domains: int, state_dim: int, context_dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(domains, context_dim)
        self.gate = nn.Linear(state_dim + context_dim, context_dim)  # W, b
        nn.init.constant_(self.gate.bias, -3.0)

    def mix(self, t: Tensor, s: Tensor, d: Tensor) -> Tuple[Tensor, Returned]:
        z = torch.sigmoid(self.gate(torch.cat([t, d], dim=-1)))
        return interpolate(s, d, z), {"domain_gates": z}


class TransformerDomainGate(DomainGate, SourceContextPart):
    def forward(self, query: Tensor, source: Tensor, layer_input: Any) -> Tuple[Tensor, Returned]:
        return self.mix(query, source, self.embedding(layer_input.added["domain"]).expand_as(source))


class RecurrentDomainGate(DomainGate, RecurrentSourcePart):
    def step_inputs(self, words: Tensor, added: Any, first_step: int) -> Tensor:
        return self.embedding(added["domain"]).expand(len(words), -1, -1)

    def forward(self, previous: Tensor, query: Tensor, source: Tensor, step_input: Any, memory: Any) -> Any:
        return self.mix(query, source, step_input)


class DomainMechanism(Mechanism[DomainOptions]):
    """The facts from which the models, the task and the command line are made."""

    name, switch, streams, required_streams = "domain", "domain_gate", (Domains,), ("domain",)
    configs = {TRANSFORMER: DomainOptions, RNNSEARCH: DomainOptions}
    architectures = {host: {f"domain_{host}": {"domain_gate": True}} for host in (TRANSFORMER, RNNSEARCH)}

    def tensors(self, encoder_input: EncoderInput) -> Dict[str, Tensor]:
        domain = encoder_input.require("domain")
        if domain.max() >= self.options.domains:  # waits for the GPU, once in each forward pass
            raise UserError(f"--domains {self.options.domains}: a sentence has domain {int(domain.max())}, from 0")
        return {"domain": torch.zeros_like(domain) if self.options.ignore_domain else domain}

    def source_part(self, layer: int, options: Any, new_attention: Any) -> TransformerDomainGate:
        return TransformerDomainGate(self.options.domains, options.decoder.embed_dim, options.decoder.embed_dim)

    def recurrent_source_part(self, widths: Any) -> RecurrentDomainGate:
        return RecurrentDomainGate(self.options.domains, widths.state, widths.context)


if __name__ == "__main__":
    parser = make_data_parser("Add the domain of each sentence to a data directory.", "a stream in each")
    parser.add_argument("--domains", nargs="+", required=True, type=split_and_files, metavar="SPLIT=FILE")
    args = parser.parse_args()
    with exit_on_user_error():
        for split, file in match_files_to_splits("--domains", args.domains, *find_data(args)).items():
            domains = file.read_text(encoding="utf-8").split()
            if len(domains) != len(split.load_language(split.source_lang)) or not all(map(str.isdecimal, domains)):
                raise UserError(f"{file}: give a number from 0 for each sentence of {split.name}, one per line")
            metadata = {"fingerprint": fingerprint(split, Domains.languages)}
            write_side_stream(split.stream_prefix(Domains.name), np.int64, metadata, ([int(one)] for one in domains))
