"""Supervised batches: a function of configuration and step, over all examples, none twice in an epoch."""

import json
from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from k3rl.chat import Marker
from k3rl.config import Config, StageSection
from k3rl.errors import UserError
from k3rl.supervised import copying
from k3rl.supervised.data import epoch_batches, made_batches, stage_batches
from k3rl.types import Message, Sample


def sample(place, length):
    zeros = np.zeros(length, np.float32)
    return Sample(
        key=f"k{place}",
        domain="d",
        tokens=np.full(length, place, np.int32),
        loss_mask=zeros + 1,
        advantages=zeros,
        logprobs=zeros,
        entropies=zeros,
        versions=np.zeros(length, np.int32),
    )


SAMPLES = [sample(place, 5 + place % 7) for place in range(40)]
STAGE = StageSection(name="s", steps=60, batch_tokens=30, source="copy")


def keys(batch):
    return [s.key.rpartition("@")[0] for s in batch]


def test_epochs_cover_every_sample_once_each_in_an_order_of_its_own():
    batches = epoch_batches(SAMPLES, STAGE, "seed")
    drawn = [key for step in range(STAGE.steps) for key in keys(batches(step))]
    wanted = Counter(s.key for s in SAMPLES)
    epochs = [drawn[start : start + 40] for start in range(0, len(drawn) - 39, 40)]
    assert len(epochs) >= 5
    assert all(Counter(epoch) == wanted for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs)


def test_shares_are_how_often_an_epoch_sees_a_domain_on_average():
    """120 samples of two domains at 1.5 and 0.25: a Bernoulli draw per sample and epoch, five standard errors."""
    samples = [replace(sample(place, 5), domain="ab"[place % 2]) for place in range(120)]
    stage = replace(STAGE, steps=4000)
    batches = epoch_batches(samples, stage, "seed", {"a": 1.5, "b": 0.25})
    drawn = Counter(s.domain for step in range(stage.steps) for s in batches(step))
    epochs = drawn.total() / (60 * 1.5 + 60 * 0.25)
    for domain, mean in (("a", 1.5), ("b", 0.25)):
        spread = 5 * (60 * epochs * (mean % 1) * (1 - mean % 1)) ** 0.5
        assert abs(drawn[domain] - 60 * epochs * mean) < spread + 60  # the last epoch is cut


def test_batches_are_filled_to_the_tokens_asked_for_and_no_further():
    batches = epoch_batches(SAMPLES, STAGE, "seed")
    for step in range(STAGE.steps):
        lengths = [len(s.tokens) for s in batches(step)]
        assert sum(lengths) >= 30 > sum(lengths[:-1])


def test_a_batch_is_a_function_of_seed_and_step():
    one, other = (epoch_batches(SAMPLES, STAGE, "seed") for _ in range(2))
    assert [keys(one(step)) for step in (41, 3, 59)] == [keys(other(step)) for step in (41, 3, 59)]
    assert [keys(one(step)) for step in range(9)] != [
        keys(epoch_batches(SAMPLES, STAGE, "other")(step)) for step in range(9)
    ]


def test_keys_are_unique_in_a_batch_that_spans_epochs():
    batch = epoch_batches(SAMPLES[:3], replace(STAGE, batch_tokens=100), "seed")(2)
    assert len(batch) > 3
    assert len({s.key for s in batch}) == len(batch)


@pytest.mark.parametrize("source", ["copy", "format"])
def test_made_batches_are_fresh_at_every_step_and_the_same_again(renderer, source):
    stage = replace(STAGE, source=source, batch_tokens=400, prompt_weight=0.5)
    batches = made_batches(renderer, stage, "seed")
    late = STAGE.steps - 2
    first, again, second = batches(late), batches(late), batches(late + 1)
    assert [s.tokens.tolist() for s in first] == [s.tokens.tolist() for s in again]
    assert [s.tokens.tolist() for s in first] != [s.tokens.tolist() for s in second]
    assert len({s.key for s in (*first, *second)}) == len(first) + len(second)
    for s in first:
        assert set(np.unique(s.loss_mask).tolist()) == {0.5, 1.0}
        assert s.loss_mask[0] == 0.5
        assert s.loss_mask[-1] == 1.0
    assert sum(len(s.tokens) for s in first) >= 400 > sum(len(s.tokens) for s in first[:-1])


@pytest.fixture
def conversations(tmp_path):
    def chat(answer):
        return {"messages": [{"role": "user", "content": "say"}, {"role": "assistant", "content": answer}]}

    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps(chat(answer)) + "\n" for answer in ("kiwi", "oak", "kiwi " * 90)))
    return file


def test_a_folder_of_conversations_is_data_and_long_ones_are_left_out(renderer, conversations, tmp_path):
    stage = StageSection(name="f", source="folder", path=str(conversations), steps=4, batch_tokens=1)
    config = Config(rollout=replace(Config().rollout, max_context=60))
    batches = stage_batches(config, stage, renderer, list)
    seen = [s for step in range(4) for s in batches(step)]
    assert Counter(keys(seen)) == {"chats.jsonl/0": 2, "chats.jsonl/1": 2}
    (answer,) = {s.tokens[s.loss_mask > 0].tobytes() for s in seen if s.key.startswith("chats.jsonl/0")}
    assert np.frombuffer(answer, np.int32).tolist() == renderer.assistant(Message(role="assistant", content="kiwi"))


def test_data_that_never_fits_is_told(renderer, conversations, tmp_path):
    stage = StageSection(name="f", source="folder", path=str(conversations))
    config = Config(rollout=replace(Config().rollout, max_context=8))
    with pytest.raises(UserError, match=r"stage f: no example of 3 fits rollout\.max_context=8"):
        stage_batches(config, stage, renderer, list)


@pytest.mark.parametrize("kind", [copying.repeat, copying.look_up, copying.call, copying.put, copying.relay])
def test_what_format_examples_answer_stands_in_what_they_were_given(kind):
    for number in range(50):
        messages = kind(Random(number))
        assert messages[-1].role == "assistant"
        seen = ""
        for message in messages:
            for call in message.tool_calls:
                assert all(value in seen for value in call.arguments.values())
            seen += message.content


@pytest.mark.parametrize("kind", [copying.call, copying.put, copying.relay])
def test_tags_of_format_examples_are_single_tokens(renderer, kind):
    tags = set()
    for number in range(20):
        for call in (call for message in kind(Random(number)) for call in message.tool_calls):
            tags |= {
                f'call tool="{call.name}" index="1"',
                *(f'argument key="{k}" type="string"' for k in call.arguments),
            }
    assert len(tags) > 1
    assert {len(renderer.tokenizer.encode(tag)) for tag in tags} == {1}


def test_a_copy_repeats_its_list_wherever_it_stands(renderer):
    batches = made_batches(renderer, replace(STAGE, source="copy", batch_tokens=400), "seed")
    sep = renderer.tokenizer.id(Marker.SEP)
    for step in (0, STAGE.steps - 1):
        places = set()
        for drawn in batches(step):
            given, answer = (drawn.tokens[drawn.loss_mask == counts].tolist() for counts in (0, 1))
            names = answer[:-1]
            starts = [i for i in range(len(given)) if given[i : i + len(names) + 1] == [*names, sep]]
            assert len(starts) == 1
            places.add((starts[0], len(given) - starts[0] - len(names)))
        assert (len(places) == 1) == (step == 0)


def test_at_first_names_alone_count_in_a_chat(renderer):
    names = {token for name in copying.NAMES for token in renderer.tokenizer.encode(name)}
    batches = made_batches(renderer, replace(STAGE, source="format", batch_tokens=400), "seed")
    for drawn in batches(0):
        counted = set(drawn.tokens[drawn.loss_mask > 0].tolist())
        assert counted
        assert counted <= names
    assert any(set(s.tokens[s.loss_mask > 0].tolist()) - names for s in batches(STAGE.steps - 1))
