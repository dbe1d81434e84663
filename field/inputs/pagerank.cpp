// PageRank of a random graph on two threads, small (fits the second cache) or large.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

int main(int, char **argv) {
    bool small = !std::strcmp(argv[1], "small");
    uint32_t nodes = small ? 1 << 10 : 8 << 20, degree = 8;
    long rounds = small ? 8 * 8192 : 8;
    std::vector<uint32_t> from(size_t(nodes) * degree);
    uint64_t state = 88172645463325252u;
    for (auto &node : from) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        node = state % nodes;
    }
    std::vector<float> rank(nodes, 1.0f), next(nodes);
    auto begun = std::chrono::steady_clock::now();
    auto part = [&](uint32_t low, uint32_t high) {
        for (uint32_t node = low; node < high; node++) {
            float sum = 0;
            for (uint32_t k = 0; k < degree; k++) sum += rank[from[size_t(node) * degree + k]];
            next[node] = 0.15f + 0.85f / degree * sum;
        }
    };
    // Threads of the small graph share many rounds each, or starting them would count.
    auto many = [&](uint32_t low, uint32_t high) {
        for (long round = 0; round < (small ? rounds : 1); round++) {
            part(low, high);
            __asm__ volatile("" ::: "memory");
        }
    };
    for (long round = 0; round < (small ? 1 : rounds); round++) {
        std::thread other(many, 0, nodes / 2);
        many(nodes / 2, nodes);
        other.join();
        rank.swap(next);
    }
    double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    std::printf("rank %.4f\nop_ns %.4f\nphase_s %.4f\n", rank[7], took / rounds / nodes / degree * 1e9, took);
}
