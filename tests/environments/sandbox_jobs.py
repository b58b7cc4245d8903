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


def spin(_):
    while True:
        pass


def crash(_):
    os.kill(os.getpid(), 11)


def leave(_):
    os._exit(7)


def grow(_):
    return len(bytearray(4 << 30))


def spread(count):
    for _ in range(count):
        if os.fork() == 0:
            time.sleep(60)
    return count
