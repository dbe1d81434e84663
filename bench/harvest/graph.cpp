/*
 * A scavenger: depth-first search and connected components on a generated graph.
 *
 *     graph [VERTICES [ROUNDS]]
 *
 * VERTICES: a power of two from 64, 1048576 by default; there are about eight edges to a vertex,
 * so that a million of them take some 50 MB. ROUNDS: of one search and one pass for the
 * components each; 0 (default) for ever. The unit of work is a vertex visited by the search, or
 * one whose edges were merged.
 *
 * The graph is made of 16 parts without an edge between them; in each a cycle in random order goes
 * through all vertices, and the other edges are random. So the search must begin 16 times and come
 * to every vertex and edge, and there are 16 components, of the same size.
 */
#include <new>
#include <vector>

#include "scavenger.h"

namespace {

constexpr uint32_t PARTS = 16;
constexpr uint32_t MOST_DEGREE = 15;

struct Graph {
	uint32_t vertices;
	/* Where the edges of each vertex begin in `targets`, and where the last end. */
	std::vector<uint32_t> begins;
	std::vector<uint32_t> targets;
};

/* Vertex v is number v / PARTS of part v % PARTS. */
Graph generate(uint32_t vertices)
{
	const uint32_t members = vertices / PARTS;
	const unsigned bits = (unsigned)__builtin_ctz(members);
	uint64_t state = 1;
	Graph graph{vertices, {}, {}};

	graph.begins.reserve(vertices + 1);
	graph.targets.reserve((size_t)vertices * (MOST_DEGREE + 1) / 2 + vertices / 8);
	for (uint32_t vertex = 0; vertex < vertices; vertex++) {
		const uint32_t part = vertex % PARTS;
		const uint64_t degree = 1 + below(next_random(&state), MOST_DEGREE);
		const uint64_t place = unscramble(vertex / PARTS, bits) + 1;
		graph.begins.push_back((uint32_t)graph.targets.size());
		graph.targets.push_back(
			(uint32_t)scramble(place & low_bits(bits), bits) * PARTS + part);
		for (uint64_t edge = 1; edge < degree; edge++)
			graph.targets.push_back(
				(uint32_t)below(next_random(&state), members) * PARTS + part);
	}
	graph.begins.push_back((uint32_t)graph.targets.size());
	return graph;
}

struct Visits {
	uint64_t begun, vertices, edges;
};

/* Visits everything that can be reached from `root`; the stack is empty before and after. */
NOINLINE void search(const Graph &graph, uint32_t root, std::vector<uint8_t> &seen,
		     std::vector<uint32_t> &stack, Visits &visits, volatile uint64_t *own)
{
	seen[root] = 1;
	stack.push_back(root);
	while (!stack.empty()) {
		const uint32_t vertex = stack.back();
		stack.pop_back();
		const uint32_t end = graph.begins[vertex + 1];
		for (uint32_t edge = graph.begins[vertex]; edge < end; edge++) {
			const uint32_t target = graph.targets[edge];
			visits.edges++;
			if (!seen[target]) {
				seen[target] = 1;
				stack.push_back(target);
			}
		}
		visits.vertices++;
		work_done(own, 1);
	}
}

bool search_all(const Graph &graph, volatile uint64_t *own)
{
	std::vector<uint8_t> seen(graph.vertices);
	std::vector<uint32_t> stack;
	Visits visits{};

	/* From the last vertex backwards, so that no two searches begin beside each other. */
	for (uint32_t i = graph.vertices; i-- > 0;)
		if (!seen[i]) {
			visits.begun++;
			search(graph, i, seen, stack, visits, own);
		}
	return visits.begun == PARTS && visits.vertices == graph.vertices &&
	       visits.edges == graph.targets.size();
}

/* The root of a vertex's tree; halves the path on the way. */
inline uint32_t root_of(std::vector<uint32_t> &parents, uint32_t vertex)
{
	while (parents[vertex] != vertex) {
		parents[vertex] = parents[parents[vertex]];
		vertex = parents[vertex];
	}
	return vertex;
}

NOINLINE void merge(const Graph &graph, uint32_t vertex, std::vector<uint32_t> &parents)
{
	for (uint32_t edge = graph.begins[vertex]; edge < graph.begins[vertex + 1]; edge++) {
		const uint32_t a = root_of(parents, vertex);
		const uint32_t b = root_of(parents, graph.targets[edge]);
		/* The order of hashes is a random one, which keeps the trees low. */
		if (hash64(a) < hash64(b))
			parents[a] = b;
		else
			parents[b] = a;
	}
}

bool components(const Graph &graph, volatile uint64_t *own)
{
	std::vector<uint32_t> parents(graph.vertices);
	std::vector<uint32_t> sizes(graph.vertices);
	uint32_t count = 0;
	bool equal = true;

	for (uint32_t i = 0; i < graph.vertices; i++)
		parents[i] = i;
	for (uint32_t i = 0; i < graph.vertices; i++) {
		merge(graph, i, parents);
		work_done(own, 1);
	}
	for (uint32_t i = 0; i < graph.vertices; i++)
		sizes[root_of(parents, i)]++;
	for (const uint32_t size : sizes) {
		count += size > 0;
		equal &= size == 0 || size == graph.vertices / PARTS;
	}
	return count == PARTS && equal;
}

bool run(uint32_t vertices, uint64_t rounds, volatile uint64_t *own)
{
	const Graph graph = generate(vertices);
	bool right = true;

	for (uint64_t round = 0; (rounds == 0 || round < rounds) && right; round++)
		right = search_all(graph, own) && components(graph, own);
	return right;
}

} // namespace

int main(int argc, char **argv)
{
	uint64_t vertices = 1 << 20, rounds = 0;
	volatile uint64_t fallback = 0;
	const struct parameter parameters[] = {
		{"VERTICES", POWER_SIZE, &vertices, 4 * PARTS, 1 << 27, nullptr},
		{"ROUNDS", COUNT, &rounds, 0, UINT64_MAX, nullptr},
	};

	if (READ_ARGUMENTS("graph", argv + 1, argc - 1, parameters) != 0)
		return EXIT_USAGE;
	volatile uint64_t *own = own_count(&fallback);
	if (own == NULL)
		return EXIT_WRONG;
	try {
		const bool right = run((uint32_t)vertices, rounds, own);
		return finish("graph", *own, right);
	} catch (const std::bad_alloc &) {
		fprintf(stderr, "graph: out of memory\n");
		return EXIT_WRONG;
	}
}
