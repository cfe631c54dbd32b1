"""The ACL that an error message recommends when Kafka refuses an operation."""

import pytest
from confluent_kafka import KafkaError

from holdfast.infra.kafka.clients.rights import SOMEBODY, Right, principal_of, refusal_of, refused


@pytest.mark.parametrize(
    ("right", "rule"),
    [
        (Right("Describe", "topic", "orders"), "--operation Describe --topic orders"),
        (Right("Read", "group", "g"), "--operation Read --group g"),
        (Right("Write", "transactional-id", "holdfast-g"), "--operation Write --transactional-id holdfast-g"),
        (Right("Alter", "cluster"), "--operation Alter --cluster"),
        (Right("Describe", "transactional-id", "*"), "--operation Describe --transactional-id '*'"),
        (Right("Write", "topic"), "--operation Write --topic <its name>"),
    ],
)
def test_the_rule_is_a_command_without_an_address(right, rule):
    assert right.rule("User:app") == f"kafka-acls.sh --add --allow-principal User:app {rule}"


def test_the_principal_is_the_user_where_there_is_one():
    assert principal_of({"sasl.username": "app", "sasl.password": "secret"}) == "User:app"
    assert principal_of({"ssl.certificate.location": "x"}) == SOMEBODY


def test_a_refusal_says_who_what_and_which_rule():
    error = refused("create topic orders", Right("Create", "topic", "orders"), "User:app")
    assert error.message == "Kafka refused User:app to create topic orders: it may not Create topic orders."
    assert error.fields["operation"] == "Create"
    assert error.fields["resource"] == "topic orders"
    assert error.fields["rule"] in error.action


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, ("Read", "topic orders")),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, ("Read", "group g")),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ("Write", "transactional-id t")),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, ("IdempotentWrite", "the cluster")),
    ],
)
def test_what_a_client_library_answers_becomes_a_right(code, wanted):
    names = {"topic": "orders", "group": "g", "transactional-id": "t"}
    error = refusal_of(KafkaError(code), "work", "User:app", operation="Read", names=names)
    assert (error.fields["operation"], error.fields["resource"]) == wanted


def test_other_errors_are_no_refusals():
    assert refusal_of(KafkaError(KafkaError._TIMED_OUT), "work", "User:app") is None
