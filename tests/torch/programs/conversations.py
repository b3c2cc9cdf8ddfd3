"""A chat server keeps the keys and values of each conversation for its next turn, and no conversation ends.

generative-computing/mellea#544 and huggingface/transformers.js#1734: `past_key_values` outlive the answer
they were made for. People leave without saying so, and new ones come. There is no optimizer, so there are
no steps.
"""

import random

import torch
from common import CURED, done, onset, start, steps
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

VOCABULARY, TURNS, NEW_TOKENS, IS_NEW_RATIO, RECENT = 512, 900, 6, 0.3, 20


class Server:
    def __init__(self, device):
        configuration = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=512,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=8,
        )
        self.model, self.device = LlamaForCausalLM(configuration).to(device).eval(), device
        self.conversations = {}

    @torch.no_grad()
    def answer(self, conversation, prompt):
        cache = self.conversations.setdefault(conversation, DynamicCache())
        tokens = torch.tensor([prompt], device=self.device)
        for _ in range(NEW_TOKENS):
            logits = self.model(tokens, past_key_values=cache, use_cache=True).logits  # CULPRIT
            tokens = logits[:, -1:].argmax(-1) % VOCABULARY


def main():
    rank, device = start()
    server, people, talking = Server(device), random.Random(rank), []
    for turn in steps(TURNS, pace_ms=100):
        if turn == 1:
            onset()
        if not talking or people.random() < IS_NEW_RATIO:
            talking = [*talking[-RECENT:], turn]
            if CURED:
                for gone in set(server.conversations) - set(talking):
                    del server.conversations[gone]
        prompt = [people.randrange(VOCABULARY) for _ in range(people.randint(20, 200))]
        server.answer(people.choice(talking), prompt)
    done()


main()
