"""Lets gdb see the original program in one that membound has patched.

Patched instructions run in trampolines, in memory that belongs to no file. This script
takes a frame there for what it stands for: its caller is shown as the original function, at
the original address, with the registers that the original program would have there.

    membound rewrite gdb-script > membound.py
    gdb -x membound.py -p PID

gdb takes the address of every frame but the innermost for a return address, and looks one
byte before it for function, line and unwind information. So the frames after a trampoline
are given the original address plus one; "bt" shows the address itself.
"""

import re
import struct

import gdb
import gdb.unwinder
from gdb.FrameDecorator import FrameDecorator

# General registers by their numbers in the instruction set.
GENERAL = (
    "rax rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15".split()
)
# The kinds of undo.
LOAD, LOAD_FLAGS, FLAGS_FROM_REGISTER, FLAGS_FROM_STACK, COPY, STACK = range(1, 7)
# CF, PF, AF, ZF, SF, OF.
ARITHMETIC = 0x8D5
MASK = (1 << 64) - 1

HEADER = struct.Struct("<10Q")
PLACE = struct.Struct("<3I")
SHAPE = struct.Struct("<2I")
STEP = struct.Struct("<4H")
UNDO = struct.Struct("<BBHi")
SLOT_WORDS = 7
JUMP = 0xE9


def memory(address, length):
    """Bytes of the program."""
    return bytes(gdb.selected_inferior().read_memory(address & MASK, length))


def unpack(layout, address):
    return layout.unpack(memory(address, layout.size))


def slots_by_note(start):
    """The agent's words for debuggers, if its file is mapped at `start`: addresses of the
    slots and of their number, bytes of a slot."""
    try:
        head = memory(start, 64)
        if head[:6] != b"\x7fELF\x02\x01":
            return None
        (table,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        for index in range(count):
            entry = memory(start + table + index * size, 56)
            kind, _, _, address = struct.unpack_from("<IIQQ", entry)
            (length,) = struct.unpack_from("<Q", entry, 32)
            if kind != 4 or length > 4096:
                continue
            notes = memory(start + address, length)
            at = notes.find(b"membound\0")
            if at < 12 or struct.unpack_from("<3I", notes, at - 12) != (9, 12, 1):
                continue
            at += 12
            slots, used, size = struct.unpack_from("<iiI", notes, at)
            here = start + address + at
            return here + slots, here + 4 + used, size
    except (gdb.MemoryError, struct.error):
        pass
    return None


def mapped_files():
    """Where each file of the program begins to be mapped, most likely the agent first."""
    try:
        text = gdb.execute("info proc mappings", False, True)
    except gdb.error:
        return []
    found = []
    for line in text.splitlines():
        words = line.split(None, 4)
        if len(words) < 5 or not words[0].startswith("0x"):
            continue
        path = re.sub(r"^[rwxps-]{4}\s+", "", words[4])
        if int(words[3], 16) == 0 and path.startswith("/"):
            found.append((not path.split(" (")[0].endswith("/agent.so"), int(words[0], 16)))
    return [start for _, start in sorted(found)]


class Agent:
    """Finds the agent in the program, once for every program."""

    def __init__(self):
        self.known = {}
        gdb.events.exited.connect(lambda _: self.known.clear())
        gdb.events.new_objfile.connect(lambda _: self.known.clear())
        if hasattr(gdb.events, "clear_objfiles"):
            gdb.events.clear_objfiles.connect(lambda _: self.known.clear())

    def areas(self):
        """The registered trampolines."""
        key = (gdb.selected_inferior().num, gdb.selected_inferior().pid)
        if key not in self.known:
            notes = (slots_by_note(start) for start in mapped_files())
            self.known[key] = next((note for note in notes if note), None)
        note = self.known[key]
        if note is None:
            return []
        slots, used, size = note
        (count,) = struct.unpack("<Q", memory(used, 8))
        whole = memory(slots, min(count, 4096) * size) if count else b""
        areas = []
        for at in range(0, len(whole), size):
            words = struct.unpack_from("<%dQ" % SLOT_WORDS, whole, at)
            if words[0] % 2 == 0 and words[2] != 0:
                areas.append(Area(words))
        return areas


class Area:
    """The trampolines of one module."""

    def __init__(self, words):
        _, self.code, self.end, self.table, self.base, self.text, self.text_end = words

    def element(self, layout, offset, index):
        return unpack(layout, self.table + offset + index * layout.size)

    def last(self, layout, offset, first, count, bound):
        """The last of `count` sorted elements whose first word is not above `bound`."""
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if self.element(layout, offset, first + middle)[0] <= bound:
                low = middle + 1
            else:
                high = middle
        return self.element(layout, offset, first + low - 1) if low else None

    def at(self, pc):
        """The original address for a byte of the trampolines, and the undos."""
        header = unpack(HEADER, self.table)
        places, count, shapes, _, steps, _, undos = header[:7]
        place = self.last(PLACE, places, 0, count, pc - self.code)
        if place is None:
            return None
        code, original, shape = place
        first, count = self.element(SHAPE, shapes, shape)
        step = self.last(STEP, steps, first, count, pc - self.code - code)
        if step is None:
            return None
        _, _, undo, count = step
        return (
            self.base + original,
            [self.element(UNDO, undos, undo + index) for index in range(count)],
        )


AGENT = Agent()


def find(pc):
    """The original address and the undos for a thread at `pc`, if that is in a trampoline
    or on the way to one."""
    try:
        areas = AGENT.areas()
        for area in areas:
            if area.code <= pc < area.end:
                return area.at(pc)
        if not areas or any(area.text <= pc < area.text_end for area in areas):
            return None
        # An island: a jump, outside all text, from a jump that had no room to lead farther.
        code, distance = struct.unpack("<Bi", memory(pc, 5))
        target = (pc + 5 + distance) & MASK
        for area in areas:
            if code == JUMP and area.code <= target < area.end:
                return area.at(target)
    except (gdb.MemoryError, struct.error):
        pass
    return None


def from_halves(image):
    """Flags as `lahf` and `seto al` leave them in rax."""
    return (image >> 8 & 0xFF) | (0x800 if image & 1 else 0)


def original(registers, undos):
    """The registers of the original program: names to values."""
    found = dict(registers)
    state = dict(registers)

    def word(address):
        return struct.unpack("<Q", memory(address, 8))[0]

    def flags(image):
        if "eflags" in state:
            state["eflags"] = state["eflags"] & ~ARITHMETIC | image & ARITHMETIC

    for kind, register, _, value in undos:
        place = state["rsp"] + value & MASK
        name = GENERAL[register]
        if kind == LOAD:
            state[name] = word(place)
        elif kind == LOAD_FLAGS:
            flags(word(place))
        elif kind == FLAGS_FROM_REGISTER and name in found:
            flags(from_halves(found[name]))
        elif kind == FLAGS_FROM_STACK:
            flags(from_halves(word(place)))
        elif kind == COPY:
            state.pop(name, None)
            if GENERAL[value] in found:
                state[name] = found[GENERAL[value]]
        elif kind == STACK:
            state["rsp"] = place
    return state


class FrameId:
    def __init__(self, sp, pc):
        self.sp = sp
        self.pc = pc


class Unwinder(gdb.unwinder.Unwinder):
    """Takes frames in trampolines for what they stand for."""

    def __init__(self):
        super().__init__("membound")

    def __call__(self, frame):
        value_of_pc = frame.read_register("rip")
        pc = int(value_of_pc) & MASK
        found = find(pc)
        if found is None:
            return None
        address, undos = found
        values = {}
        for name in GENERAL + ["eflags"]:
            try:
                value = frame.read_register(name)
                values[name] = (value.type, int(value) & MASK)
            except (gdb.error, ValueError):
                # Not known in this frame, hence not in the next.
                continue
        if "rsp" not in values:
            return None
        try:
            state = original({name: value for name, (_, value) in values.items()}, undos)
        except gdb.MemoryError:
            return None
        stack = gdb.Value(state["rsp"]).cast(values["rsp"][0])
        info = frame.create_unwind_info(FrameId(stack, value_of_pc))
        self.keep_others(frame, info)
        for name, value in state.items():
            kind = values[name][0] if name in values else values["rsp"][0]
            if name == "eflags":
                # A set of bits cannot be cast to; its bytes can be had as one.
                number = gdb.Value(value & 0xFFFFFFFF).cast(gdb.lookup_type("int"))
                info.add_saved_register(name, reinterpret(number, kind))
            else:
                info.add_saved_register(name, gdb.Value(value).cast(kind))
        info.add_saved_register(
            "rip", gdb.Value(address + 1 & MASK).cast(value_of_pc.type)
        )
        return info

    @staticmethod
    def keep_others(frame, info):
        """Registers that trampolines leave as they are."""
        architecture = frame.architecture()
        names = [register.name for register in architecture.registers()]
        ours = set(GENERAL) | {"rip", "eflags"}
        raw = re.compile(r"(xmm|ymm|st|k)\d+|(fs|gs)_base|mxcsr|[cdefgs]s|f(ctrl|stat|tag|op)|fi.*|fo.*")
        for name in names:
            if name in ours or not raw.fullmatch(name) or name.startswith("ymm"):
                continue
            try:
                info.add_saved_register(name, frame.read_register(name))
            except (gdb.error, ValueError):
                continue


def reinterpret(number, kind):
    """`number`'s bytes as a value of the type `kind`."""
    return gdb.Value(int(number).to_bytes(4, "little"), kind)


class Decorator(FrameDecorator):
    """Names trampolines, and shows the address behind the one that gdb needs."""

    def __init__(self, base, newer):
        super().__init__(base)
        self.newer = newer

    def function(self):
        frame = self.inferior_frame()
        found = find(frame.pc()) if self.is_real() else None
        if found is None:
            return super().function()
        symbol = gdb.execute("info symbol %#x" % found[0], False, True).split(" in section")[0]
        return "membound's trampoline for %s" % symbol.strip()

    def is_real(self):
        return self.inferior_frame().type() == gdb.NORMAL_FRAME

    def address(self):
        pc = super().address()
        newer = self.newer
        if pc is not None and newer is not None and self.is_real() and find(newer.pc()):
            return pc - 1
        return pc


class Filter:
    """Puts the decorator on every frame."""

    def __init__(self):
        self.name = "membound"
        self.priority = 50
        self.enabled = True
        gdb.frame_filters[self.name] = self

    def filter(self, frames):
        return map(lambda base: Decorator(base, base.inferior_frame().newer()), frames)


gdb.unwinder.register_unwinder(None, Unwinder(), replace=True)
Filter()
