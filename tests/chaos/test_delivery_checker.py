"""The judge of the demo: each anomaly is named and counted, and only real ones."""

import hashlib

import pytest

from chaos.checkers.delivery import DeliveryHistory


def history_of(count: int) -> DeliveryHistory:
    """`count` messages, all in queue 0, acknowledged and delivered at offset = number."""
    history = DeliveryHistory(count)
    for number in range(count):
        history.acknowledged(number, 0, number)
        history.delivered(number, 0, number, b"%d" % number)
    return history


def test_a_run_in_which_everything_arrived_once_and_in_order_is_sound() -> None:
    report = history_of(5).report()
    assert report.is_sound
    assert (report.sent, report.acked, report.delivered) == (5, 5, 5)
    assert report.examples == {}


def test_an_acknowledged_message_that_never_arrives_is_lost_and_named() -> None:
    history = DeliveryHistory(2)
    history.acknowledged(0, 0, 0)
    history.acknowledged(1, 0, 1)
    history.delivered(0, 0, 0, b"a")
    report = history.report()
    assert (report.lost, report.examples["lost"], report.is_sound) == (1, [1], False)
    assert history.undelivered_count == 1


def test_a_message_that_arrives_without_acknowledgement_is_no_loss_but_not_sound() -> None:
    history = DeliveryHistory(1)
    history.delivered(0, 0, 0, b"a")
    report = history.report()
    assert (report.lost, report.acked, report.is_sound) == (0, 0, False)


def test_a_message_stored_twice_by_a_retry_is_a_duplicate_and_no_disorder() -> None:
    history = DeliveryHistory(3)
    for offset, number in enumerate([0, 1, 1, 2]):
        history.acknowledged(number, 0, offset)
        history.delivered(number, 0, offset, b"x")
    report = history.report()
    assert (report.duplicates, report.stored_twice, report.out_of_order, report.misplaced) == (1, 1, 0, 0)
    assert report.is_sound


def test_a_stored_message_delivered_again_is_a_duplicate_that_was_not_stored_twice() -> None:
    history = history_of(3)
    history.delivered(1, 0, 1, b"1")
    report = history.report()
    assert (report.duplicates, report.stored_twice, report.out_of_order) == (1, 0, 0)


def test_first_deliveries_that_go_back_in_number_or_offset_are_out_of_order() -> None:
    by_number, by_offset = DeliveryHistory(3), DeliveryHistory(3)
    for offset, number in enumerate([0, 2, 1]):
        by_number.delivered(number, 0, offset, b"x")
    for number, offset in enumerate([0, 2, 1]):
        by_offset.delivered(number, 0, offset, b"x")
    assert by_number.report().out_of_order == 1
    assert by_offset.report().out_of_order == 1
    assert by_number.report().examples["out_of_order"] == [1]


def test_queues_are_judged_apart() -> None:
    history = DeliveryHistory(4)
    for number, queue in [(1, 1), (0, 0), (3, 1), (2, 0)]:
        history.delivered(number, queue, number // 2, b"x")
    assert history.report().out_of_order == 0


def test_a_message_that_lies_elsewhere_than_its_answer_said_is_misplaced() -> None:
    history = DeliveryHistory(1)
    history.acknowledged(0, 0, 5)
    history.delivered(0, 0, 6, b"x")
    assert history.report().misplaced == 1


def test_a_number_that_was_never_sent_is_refused() -> None:
    with pytest.raises(ValueError, match="message 7"):
        DeliveryHistory(3).delivered(7, 0, 0, b"")


def test_the_hash_is_of_the_bodies_in_the_order_of_their_numbers() -> None:
    history = DeliveryHistory(3)
    for number, body in [(2, b"\n"), (0, b"a\r\n"), (1, b"")]:
        history.delivered(number, number, 0, body)
    assert history.sha256() == hashlib.sha256(b"a\r\n\n").hexdigest()
