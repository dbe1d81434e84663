"""Publishes to a nats-server and times requests: nats_load.py PORT MESSAGES REQUESTS."""
import socket
import sys
import time

port, messages, requests = map(int, sys.argv[1:])


def connect():
    link = socket.create_connection(("127.0.0.1", port))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.recv(65536)
    link.sendall(b'CONNECT {"verbose":false}\r\n')
    return link


def answer(link):
    link.sendall(b"PING\r\n")
    data = b""
    # The server sends a PING of its own in between.
    while b"PONG\r\n" not in data:
        data += link.recv(65536)


publisher, subscriber = connect(), connect()
subscriber.sendall(b"SUB field 1\r\n")
answer(subscriber)
batch = b"".join(b"PUB field 64\r\n" + b"x" * 64 + b"\r\n" for _ in range(500))
received = 0
size = len(b"MSG field 1 64\r\n" + b"x" * 64 + b"\r\n")
begun = time.perf_counter()
for _ in range(messages // 500):
    publisher.sendall(batch)
    wanted = 500 * size
    while wanted > 0:
        wanted -= len(subscriber.recv(1 << 20))
took = time.perf_counter() - begun
times = []
for _ in range(requests):
    begun = time.perf_counter()
    answer(publisher)
    times.append(time.perf_counter() - begun)
times.sort()
print("%.0f messages per second" % (messages / took))
print("p99 %.2f us" % (times[len(times) * 99 // 100] * 1e6))
