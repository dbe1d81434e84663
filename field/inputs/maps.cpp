// Looks up random keys of a std::unordered_map or std::map, small (fits the second cache) or
// large: maps unordered|ordered small|large.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <unordered_map>

template <class Map> __attribute__((noinline)) uint64_t walk(const Map &map, uint64_t keys, long count) {
    uint64_t state = 88172645463325252u, sum = 0;
    for (long i = 0; i < count; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        sum += map.find(state % keys)->second;
    }
    return sum;
}

template <class Map> void run(uint64_t keys, long count) {
    Map map;
    // Inserted in an order that scatters neighbours over the heap.
    for (uint64_t i = 0; i < keys; i++) {
        uint64_t key = i * 2654435761u % keys;
        map[key] = key * 3;
    }
    auto begun = std::chrono::steady_clock::now();
    uint64_t sum = walk(map, keys, count);
    double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    std::printf("sum %llu\nop_ns %.4f\nphase_s %.4f\n", (unsigned long long)sum, took / count * 1e9, took);
}

int main(int, char **argv) {
    bool small = !std::strcmp(argv[2], "small");
    if (!std::strcmp(argv[1], "unordered"))
        run<std::unordered_map<uint64_t, uint64_t>>(small ? 256 : 4 << 20, 60000000);
    else
        run<std::map<uint64_t, uint64_t>>(small ? 256 : 1 << 20, 2500000);
}
