"""Reads an export with the code that other programs read it with, and prints what it says as JSON.

Arguments: perfetto, otlp, arrow, parquet or duckdb, and the file.
"""

import collections
import json
import sys


def table():
    return collections.defaultdict(lambda: [0, 0])


class Sums:
    """Samples added up: CPU time and stalled time, in nanoseconds."""

    def __init__(self):
        self.samples = 0
        self.total = [0, 0]
        self.by = {kind: table() for kind in ("functions", "threads", "objects", "levels")}
        self.chains = collections.Counter()

    def add(self, cpu_ns, stall_ns, **names):
        for sums in [self.total] + [self.by[kind][name] for kind, name in names.items() if name is not None]:
            sums[0] += cpu_ns
            sums[1] += stall_ns

    def json(self, **more):
        found = {"samples": self.samples, "total": self.total, "chains": dict(self.chains), **more}
        found.update({kind: dict(sums) for kind, sums in self.by.items() if sums})
        return json.dumps(found)


def perfetto(path):
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

    trace = protos.Trace()
    with open(path, "rb") as file:
        trace.ParseFromString(file.read())
    first = trace.packet[0]
    interned = first.interned_data
    text = lambda entries: {it.iid: (it.str if hasattr(it, "str") else it.name) for it in entries}
    functions = {iid: it.decode() for iid, it in text(interned.function_names).items()}
    mappings = {it.iid for it in interned.mappings}
    names = text(interned.event_names)
    strings = {iid: it.decode() for iid, it in text(interned.debug_annotation_string_values).items()}
    frames = {it.iid: it for it in interned.frames}
    assert all(it.mapping_id in mappings for it in frames.values())
    stacks = {it.iid: [functions[frames[f].function_name_id] for f in it.frame_ids] for it in interned.callstacks}
    tracks = {it.track_descriptor.uuid: it.track_descriptor for it in trace.packet if it.HasField("track_descriptor")}
    assert 0 not in tracks
    threads = {it.uuid: it for it in tracks.values() if it.HasField("thread")}
    numbers = {(it.thread.pid, it.thread.tid): it.thread.thread_name for it in threads.values()}
    for track in tracks.values():
        assert track.parent_uuid == 0 or track.parent_uuid in tracks
    sums = Sums()
    before = [0, 0]
    counters = {}
    bandwidth = collections.Counter()
    last = 0
    for packet in trace.packet[1:]:
        assert packet.trusted_packet_sequence_id == first.trusted_packet_sequence_id
        if packet.HasField("perf_sample"):
            sample = packet.perf_sample
            assert packet.timestamp >= last
            last = packet.timestamp
            after = [sample.timebase_count, sample.follower_counts[0]]
            cpu_ns, stall_ns = (new - old for new, old in zip(after, before))
            before = after
            stack = stacks[sample.callstack_iid]
            sums.samples += 1
            sums.add(cpu_ns, stall_ns, functions=stack[-1], threads=numbers[(sample.pid, sample.tid)])
            sums.chains[";".join(stack)] += stall_ns
        elif packet.HasField("track_event"):
            event = packet.track_event
            track = tracks[event.track_uuid]
            if event.type == protos.TrackEvent.TYPE_INSTANT:
                found = {it.name: it for it in event.debug_annotations}
                stall_ns = found["stall_ns"].uint_value
                level = names[event.name_iid].removeprefix("waiting for ")
                sums.by["levels"][level][1] += stall_ns
                if "object" in found:
                    sums.by["objects"][strings[found["object"].string_value_iid]][1] += stall_ns
            elif event.HasField("double_counter_value"):
                bandwidth[track.name] += event.double_counter_value
            else:
                counters[event.track_uuid] = event.counter_value
    grown = [0, 0]
    for track, value in counters.items():
        grown[tracks[track].name.startswith("stalled")] += value
        assert tracks[track].parent_uuid in threads
        assert tracks[track].counter.unit == protos.CounterDescriptor.UNIT_TIME_NS
    clocks = {it.clock_id: it.timestamp for it in first.clock_snapshot.clocks}
    print(sums.json(counters=grown, bandwidth=dict(bandwidth), realtime=clocks[1], boottime=clocks[6]))


def otlp(path):
    from opentelemetry.proto.profiles.v1development import profiles_pb2 as protos

    data = protos.ProfilesData()
    with open(path, "rb") as file:
        data.ParseFromString(file.read())
    shared = data.dictionary
    for name in ("mapping", "location", "function", "link", "attribute", "stack"):
        entries = getattr(shared, f"{name}_table")
        assert entries[0] == type(entries[0])(), name
        assert len({it.SerializeToString() for it in entries}) == len(entries), name
    assert shared.string_table[0] == ""
    assert len(set(shared.string_table)) == len(shared.string_table)
    texts = shared.string_table

    def frames(index):
        for location in shared.stack_table[index].location_indices:
            for line in shared.location_table[location].lines:
                yield texts[shared.function_table[line.function_index].name_strindex]

    sums = Sums()
    (resource,) = data.resource_profiles
    (scope,) = resource.scope_profiles
    assert scope.scope.name == "membound"
    kinds = []
    for profile in scope.profiles:
        kind = texts[profile.sample_type.type_strindex]
        assert texts[profile.sample_type.unit_strindex] == "nanoseconds"
        kinds.append(kind)
        seen = set()
        for sample in profile.samples:
            identity = (sample.stack_index, tuple(sorted(sample.attribute_indices)))
            assert identity not in seen
            seen.add(identity)
            assert len(sample.values) == len(sample.timestamps_unix_nano) > 0
            for time in sample.timestamps_unix_nano:
                assert profile.time_unix_nano <= time <= profile.time_unix_nano + profile.duration_nano, time
            named = {}
            for index in sample.attribute_indices:
                attribute = shared.attribute_table[index]
                value = attribute.value
                named[texts[attribute.key_strindex]] = getattr(value, value.WhichOneof("value"))
            chain = list(frames(sample.stack_index))
            total = sum(sample.values)
            cpu_ns, stall_ns = (total, 0) if kind == "cpu" else (0, total)
            if kind == "cpu":
                sums.samples += len(sample.values)
            else:
                sums.chains[";".join(reversed(chain))] += total
            sums.add(
                cpu_ns,
                stall_ns,
                functions=chain[0],
                threads=named["thread.name"],
                objects=named.get("membound.object"),
                levels=named.get("membound.level"),
            )
    resources = {it.key: it.value.string_value for it in resource.resource.attributes}
    print(sums.json(kinds=kinds, resources=resources, start=scope.profiles[0].time_unix_nano))


def rows(columns):
    sums = Sums()
    for row in range(len(columns["cpu_ns"])):
        value = {name: column[row] for name, column in columns.items()}
        sums.samples += 1
        sums.add(
            value["cpu_ns"],
            value["stall_ns"],
            functions=value["function"],
            threads=value["thread"],
            objects=value["object"],
            levels=value["level"],
        )
        sums.chains[value["stack"]] += value["stall_ns"]
    times = list(columns["time_ns"])
    print(sums.json(times=[times[0], times[-1]] if times else [], ordered=times == sorted(times)))


def arrow(path):
    from pyarrow import ipc

    with ipc.open_file(path) as file:
        rows(file.read_all().to_pydict())


def parquet(path):
    from pyarrow import parquet

    rows(parquet.read_table(path).to_pydict())


def duckdb(path):
    import duckdb

    found = duckdb.sql(f"select * from read_parquet('{path}')")
    values = list(zip(*found.fetchall())) or [()] * len(found.columns)
    rows(dict(zip(found.columns, values)))


if __name__ == "__main__":
    {"perfetto": perfetto, "otlp": otlp, "arrow": arrow, "parquet": parquet, "duckdb": duckdb}[sys.argv[1]](sys.argv[2])
