"""Sets and gets keys of a memcached, and times single gets:
memcached_load.py PORT OPERATIONS REQUESTS."""
import socket
import sys
import time

port, operations, requests = map(int, sys.argv[1:])
link = socket.create_connection(("127.0.0.1", port))
link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
value = b"x" * 100
keys = [b"key%06d" % (key * 7919 % 100_000) for key in range(100_000)]


def exchange(request, end, times):
    link.sendall(request)
    found, rest = 0, b""
    while found < times:
        data = link.recv(1 << 20)
        if not data:
            sys.exit("the server closed the connection")
        found += (rest[-len(end) + 1 :] + data).count(end)
        rest = data


batch = 50
sets = [b"".join(b"set %s 0 0 100\r\n%s\r\n" % (key, value) for key in keys[i : i + batch]) for i in range(0, len(keys), batch)]
gets = [b"".join(b"get %s\r\n" % key for key in keys[i : i + batch]) for i in range(0, len(keys), batch)]
for request in sets:
    exchange(request, b"STORED\r\n", batch)
begun = time.perf_counter()
done = 0
while done < operations:
    place = done // batch % len(gets)
    if place % 10 == 0:
        exchange(sets[place], b"STORED\r\n", batch)
    else:
        exchange(gets[place], b"END\r\n", batch)
    done += batch
took = time.perf_counter() - begun
times = []
for request in range(requests):
    begun = time.perf_counter()
    exchange(b"get %s\r\n" % keys[request % len(keys)], b"END\r\n", 1)
    times.append(time.perf_counter() - begun)
times.sort()
print("%.0f operations per second" % (done / took))
print("p99 %.2f us" % (times[len(times) * 99 // 100] * 1e6))
