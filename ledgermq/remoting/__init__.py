"""RocketMQ's remoting protocol: frames, connections, the asyncio server and client."""
