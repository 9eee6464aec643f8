"""`ledgermq acl import`: RocketMQ's old access control into users and policies.

Reading order: `command` (words), `files` (YAML), `importing` (requests).
"""
