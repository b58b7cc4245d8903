"""Jobs that test_sandbox runs inside."""

import os
import time


def double(items):
    return items * 2


def read(path):
    with open(path) as file:
        return file.read()


def fail(_):
    os.write(1, b"said before\n")
    raise KeyError("why")


def spin(_, send=None):
    while True:
        pass


def crash(_):
    os.kill(os.getpid(), 11)


def leave(_):
    os._exit(7)


def grow(_):
    return len(bytearray(4 << 30))


def send_and_die(_, send):
    send(["one", 1])
    os.write(3, b"no json\n[1, 2\n" + b"9" * 5000 + b"\n")
    send({"descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:4], "folder": os.getcwd()})
    os.write(1, b"nobody reads this\n")
    os.kill(os.getpid(), 9)


def close_and_stay(_, send):
    send("before")
    os.close(3)
    time.sleep(60)


def send_much(_, send):
    while True:
        send("x" * 100)


_calls = []


def count(fail):
    _calls.append(fail)
    if fail == "raise":
        raise KeyError("why")
    if fail == "die":
        os.kill(os.getpid(), 9)
    if fail == "spin":
        while True:
            pass
    return [len(_calls), os.getpid()]


def spread(count):
    for _ in range(count):
        if os.fork() == 0:
            time.sleep(60)
    return count
