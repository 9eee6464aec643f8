"""Requests about groups: create and change (200, 225), delete (207), show (201, 352), forbid a topic (353).

Source: apache/rocketmq `broker/.../processor/AdminBrokerProcessor.java` (5.x).
"""

from dataclasses import replace
from typing import Any

from broker.context import BrokerContext
from broker.state import names
from broker.state.attributes import GROUP_ATTRIBUTES, change_attributes
from broker.state.settings import GroupConfig, check_extra
from broker.subsystem import AnswerParts, Steps, answer_after
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.data_version import DataVersion
from ledgermq.remoting.codec.fields import boolean, text
from ledgermq.remoting.codec.java_json import dumps
from ledgermq.remoting.codec.lenient_json import listed_json, request_json
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal


class GroupRequests:
    """Changes and shows groups; a change is answered when it is committed."""

    def __init__(self, context: BrokerContext) -> None:
        self._state = context.state
        self._metadata = context.metadata
        self._offsets = context.offsets
        self._role = context.role

    def update_group(self, connection: Connection, command: Command) -> None:
        """200: create a group, or change its settings."""
        self._role.check_writable()
        group = self._changed_group(request_json(command))
        if group == self._metadata.group(group.name):
            connection.respond(command, ResponseCode.SUCCESS)
            return
        self._metadata.put_group(group, answer_after(connection, command))

    def _changed_group(self, entry: Any) -> GroupConfig:
        """Return a group as a body describes it; its attributes are changes to the present ones."""
        group = GroupConfig.from_json(entry)
        names.check_group_name(group.name)
        check_extra(group)
        before = self._metadata.group(group.name)
        attributes = change_attributes(GROUP_ATTRIBUTES, before.attributes if before else None, group.attributes)
        return replace(group, attributes=attributes)

    def update_groups(self, connection: Connection, command: Command) -> Steps:
        """225: create several groups, or change their settings; none if one is not allowed."""
        self._role.check_writable()
        groups = []
        for entry in listed_json(command, "groupConfigList", "groupName"):
            groups.append(self._changed_group(entry))
            yield
        yield from self._metadata.put_groups(groups, answer_after(connection, command))

    def delete_group(self, connection: Connection, command: Command) -> None:
        """207: delete a group, and its offsets if asked to."""
        self._role.check_writable()
        name = text(command.ext, "groupName")
        if name in names.SYSTEM_GROUPS:
            raise Refusal(Cause.INVALID_PARAMETER, f"the group {name} belongs to the system")
        topics = self._offsets.topics_of_group(name) if boolean(command.ext, "cleanOffset") else ()
        self._metadata.remove_group(name, topics, answer_after(connection, command))

    def all_groups(self, connection: Connection, command: Command) -> Steps:
        """201: answer every group's settings."""
        version = self._state.group_version
        head = dumps(DataVersion(version.counter, version.timestamp, self._role.generation).to_json())
        forbidden = dumps(self._metadata.forbidden())
        entries = AnswerParts()
        for name, group in self._metadata.groups().items():
            entries.add(dumps(name) + b":" + dumps(group.to_json()))
            yield
        body = b'{"dataVersion":%b,"forbiddenTable":%b,"subscriptionGroupTable":{%b}}' % (
            head,
            forbidden,
            entries.joined(),
        )
        connection.respond(command, ResponseCode.SUCCESS, body=body)

    def group_forbidden(self, connection: Connection, command: Command) -> None:
        """353: answer whether a group may read a topic; with `readable`, set it first."""
        fields = command.ext
        group, topic = text(fields, "group"), text(fields, "topic")

        def answer(readable: bool) -> None:
            body = dumps({"group": group, "readable": readable, "topic": topic})
            connection.respond(command, ResponseCode.SUCCESS, body=body, remark="")

        if fields.get("readable") is None:
            answer(not self._metadata.is_read_forbidden(group, topic))
            return
        self._role.check_writable()
        readable = boolean(fields, "readable")
        if not group:
            answer(readable)  # as RocketMQ, which serves requests without a group all the same
            return

        def done(refusal: Refusal | None) -> None:
            if refusal is None:
                answer(readable)
            else:
                connection.refuse(command, refusal)

        self._metadata.forbid_read(group, topic, not readable, done)

    def group_config(self, connection: Connection, command: Command) -> None:
        """352: answer one group's settings."""
        name = text(command.ext, "group")
        group = self._metadata.group_or_new(name)
        if group is None:
            raise Refusal(Cause.GROUP_NOT_EXIST, f"No group in this broker. group: {name}")
        connection.respond(command, ResponseCode.SUCCESS, body=dumps(group.to_json()))
