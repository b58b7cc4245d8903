"""A tiny random model, and a driver of the synchronous engine."""

from dataclasses import dataclass

import torch

from k3rl.inference import Sampling, TurnRules
from k3rl.model import Model, preset

VOCABULARY = 101
RULES = TurnRules(stop=1000, close_thinking=(96, 97))  # no model of this vocabulary samples the stop token


@dataclass(frozen=True)
class Request:
    """A scripted session: its turns are (given, max_tokens, thinking_budget)."""

    prompt: tuple[int, ...]
    seed: int
    turns: tuple[tuple[tuple[int, ...], int, int | None], ...]
    temperature: float = 1.0
    context: int | None = None


def random_model(seed=0, dtype=torch.float32):
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = Model(preset("nano").with_vocabulary(VOCABULARY)).to(dtype)
    with torch.no_grad():
        model.lm_head.mul_(3)  # logits of a standard deviation of about 2, neither flat nor sure
    return model


def open_session(engine, request):
    return engine.open(
        request.prompt,
        seed=request.seed,
        sampling=Sampling(temperature=request.temperature),
        group_key="test",
        context=request.context,
    )


def drive(engine, requests, *, between_steps=lambda step: None):
    """Run all sessions at once to their ends: ([TokenLog], [[SampledTurn]])."""
    sessions = [open_session(engine, request) for request in requests]
    place = {session: n for n, session in enumerate(sessions)}
    turns, logs = [[] for _ in requests], [None] * len(requests)

    def go_on(n):
        done = len(turns[n])
        if done == len(requests[n].turns):
            logs[n] = engine.close(sessions[n])
        else:
            given, max_tokens, budget = requests[n].turns[done]
            engine.start_turn(sessions[n], given, max_tokens=max_tokens, thinking_budget=budget)

    for n in range(len(requests)):
        go_on(n)
    step = 0
    while engine.has_work:
        for session, turn in engine.step():
            turns[place[session]].append(turn)
            go_on(place[session])
        step += 1
        between_steps(step)
    assert all(log is not None for log in logs)
    return logs, turns
