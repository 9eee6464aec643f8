"""RocketMQ's remoting protocol: frames, connections, the asyncio server and client.

    codes, command        the messages                      refusal   the one type for all rejections
    frame                 bytes <-> commands, with headers, lenient_json
    connection            one end of one connection: serving, asking (outgoing), back-pressure (limits)
    server, client        many connections (connection_set)

Read `command`, `frame`, `connection` in this order.
"""
