"""What a replay counts: equal runs have equal hashes, and a sentence said a thousand times is told once."""

from reflectdrive_ros.replay.counters import MESSAGES_MAX, MessageCounter


def counted(*sentences):
    counter = MessageCounter()
    for sentence in sentences:
        counter.add(sentence)
    return counter.counted()


def test_sentences_that_differ_in_numbers_are_one_with_their_range():
    turns = "the plan turns with a curvature of {} 1/m, allowed 0.35 1/m"
    counts = counted(turns.format("0.41"), "a full step is due", turns.format("1.5"), turns.format("0.6"))
    assert counts == {turns.format("0.41 to 1.5"): 3, "a full step is due": 1}
    assert counted("9.0 s went by", "9.0 s went by") == {"9.0 s went by": 2}
    assert counted("10 m", "9 m") == {"9 to 10 m": 2}  # by size, not by spelling


def test_no_more_are_told_than_are_read():
    words = [chr(ord("a") + k % 26) * (1 + k // 26) for k in range(2 * MESSAGES_MAX)]
    counts = counted(*words, *words[-3:])
    assert len(counts) == MESSAGES_MAX
    assert list(counts)[:3] == words[-3:]
