/*
 * A B+-tree of 64-bit keys and values, for one thread: what `kv` stores in. Nodes are of 256 bytes
 * and come from one area that is mapped at the start. It grows, and never shrinks.
 */
#ifndef HARVEST_TREE_HPP
#define HARVEST_TREE_HPP

#include "common.h"

class Tree {
public:
	static constexpr unsigned ENTRIES = 15;
	static constexpr size_t NODE_BYTES = 256;

	struct alignas(LINE_BYTES) Leaf {
		uint64_t count;
		Leaf *next;
		uint64_t keys[ENTRIES];
		uint64_t values[ENTRIES];
	};

	/* A tree of `leaves` leaves with LOADED entries each: entry i has key_of(i), which grows with
	 * i, and value_of(its key). `more` nodes can be added. Leaves that follow each other do
	 * not lie beside each other. Returns whether memory could be had. */
	static constexpr unsigned LOADED = 10;
	template <typename KeyOf, typename ValueOf>
	bool load(uint64_t leaves, uint64_t more, enum pages pages, KeyOf key_of, ValueOf value_of);

	/* Where the value of `key` is, or a null pointer. */
	uint64_t *find(uint64_t key) const
	{
		Leaf *leaf = leaf_of(key);
		const unsigned slot = place(leaf->keys, leaf->count, key);

		return slot < leaf->count && leaf->keys[slot] == key ? &leaf->values[slot] : nullptr;
	}

	/* Calls visit(key, value) for entries from `key` on, upwards, as long as it returns true. */
	template <typename Visit> void scan(uint64_t key, Visit visit) const
	{
		const Leaf *leaf = leaf_of(key);
		unsigned slot = place(leaf->keys, leaf->count, key);

		for (; leaf != nullptr; leaf = leaf->next, slot = 0)
			for (; slot < leaf->count; slot++)
				if (!visit(leaf->keys[slot], leaf->values[slot]))
					return;
	}

	/* Adds `key`, which must not be there. Returns false when there is no node left. */
	bool insert(uint64_t key, uint64_t value);

	uint64_t nodes() const { return used_; }
	unsigned levels() const { return levels_ + 1; }

	/* Nodes of a tree of so many leaves, when it is loaded. */
	static uint64_t nodes_of(uint64_t leaves)
	{
		uint64_t nodes = leaves;

		while (leaves > 1) {
			leaves = (leaves + FANOUT - 1) / FANOUT;
			nodes += leaves;
		}
		return nodes;
	}

private:
	/* children[i] holds keys less than keys[i], the last child the others. */
	struct alignas(LINE_BYTES) Inner {
		uint64_t count;
		uint64_t keys[ENTRIES];
		void *children[ENTRIES + 1];
	};
	static_assert(sizeof(Leaf) == NODE_BYTES && sizeof(Inner) == NODE_BYTES, "as documented");
	/* Children of an inner node when it is loaded; of fewer than 16^16 leaves. */
	static constexpr unsigned FANOUT = 12;
	static constexpr unsigned MOST_LEVELS = 16;

	/* How many of `keys` are less than `key`. */
	static unsigned place(const uint64_t *keys, uint64_t count, uint64_t key)
	{
		unsigned i = 0;

		while (i < count && keys[i] < key)
			i++;
		return i;
	}

	/* Which child of `inner` holds `key`. */
	static unsigned child_of(const Inner *inner, uint64_t key)
	{
		unsigned i = 0;

		while (i < inner->count && inner->keys[i] <= key)
			i++;
		return i;
	}

	Leaf *leaf_of(uint64_t key) const
	{
		void *node = root_;

		for (unsigned level = 0; level < levels_; level++) {
			const Inner *inner = static_cast<const Inner *>(node);
			node = inner->children[child_of(inner, key)];
		}
		return static_cast<Leaf *>(node);
	}

	void *node(uint64_t number) const { return area_ + number * NODE_BYTES; }

	void put_child(Inner *inner, unsigned at, uint64_t key, void *child);

	char *area_ = nullptr;
	uint64_t used_ = 0, room_ = 0;
	void *root_ = nullptr;
	/* Of inner nodes. */
	unsigned levels_ = 0;
};

template <typename KeyOf, typename ValueOf>
bool Tree::load(uint64_t leaves, uint64_t more, enum pages pages, KeyOf key_of, ValueOf value_of)
{
	room_ = nodes_of(leaves) + more;
	area_ = map_area(room_ * NODE_BYTES, pages);
	if (area_ == nullptr)
		return false;

	/* The permutation is of a power of two: what it puts beyond the leaves is put on. */
	const unsigned bits = leaves > 1 ? 64 - (unsigned)__builtin_clzll(leaves - 1) : 1;
	const auto leaf_at = [&](uint64_t i) {
		do
			i = scramble(i, bits);
		while (i >= leaves);
		return static_cast<Leaf *>(node(i));
	};
	for (uint64_t i = 0; i < leaves; i++) {
		Leaf *leaf = leaf_at(i);
		leaf->count = LOADED;
		leaf->next = i + 1 < leaves ? leaf_at(i + 1) : nullptr;
		for (unsigned k = 0; k < LOADED; k++) {
			leaf->keys[k] = key_of(i * LOADED + k);
			leaf->values[k] = value_of(leaf->keys[k]);
		}
	}

	/* Upwards, a level at a time: `span` is how many leaves a child holds. */
	uint64_t children = leaves, span = 1, first_child = 0;
	used_ = leaves;
	for (levels_ = 0; children > 1; levels_++) {
		const uint64_t parents = (children + FANOUT - 1) / FANOUT;
		for (uint64_t p = 0; p < parents; p++) {
			Inner *inner = static_cast<Inner *>(node(used_ + p));
			const uint64_t begin = p * FANOUT;
			const uint64_t end = begin + FANOUT < children ? begin + FANOUT : children;
			inner->count = end - begin - 1;
			for (uint64_t c = begin; c < end; c++) {
				inner->children[c - begin] =
					levels_ == 0 ? leaf_at(c) : node(first_child + c);
				if (c > begin)
					inner->keys[c - begin - 1] = key_of(c * span * LOADED);
			}
		}
		first_child = used_;
		used_ += parents;
		children = parents;
		span *= FANOUT;
	}
	root_ = levels_ == 0 ? leaf_at(0) : node(used_ - 1);
	return true;
}

/* Puts `child`, whose keys begin at `key`, behind child `at` of an inner node that has room. */
inline void Tree::put_child(Inner *inner, unsigned at, uint64_t key, void *child)
{
	for (uint64_t i = inner->count; i > at; i--) {
		inner->keys[i] = inner->keys[i - 1];
		inner->children[i + 1] = inner->children[i];
	}
	inner->keys[at] = key;
	inner->children[at + 1] = child;
	inner->count++;
}

inline bool Tree::insert(uint64_t key, uint64_t value)
{
	Inner *path[MOST_LEVELS];
	unsigned slots[MOST_LEVELS];
	void *at = root_;

	/* As many as a split of everything from leaf to root takes. */
	if (used_ + levels_ + 2 > room_ || levels_ + 1 >= MOST_LEVELS)
		return false;
	for (unsigned level = 0; level < levels_; level++) {
		path[level] = static_cast<Inner *>(at);
		slots[level] = child_of(path[level], key);
		at = path[level]->children[slots[level]];
	}
	Leaf *leaf = static_cast<Leaf *>(at);
	Leaf *right = nullptr;
	if (leaf->count == ENTRIES) {
		right = static_cast<Leaf *>(node(used_++));
		const unsigned kept = (ENTRIES + 1) / 2;
		right->count = ENTRIES - kept;
		for (unsigned i = kept; i < ENTRIES; i++) {
			right->keys[i - kept] = leaf->keys[i];
			right->values[i - kept] = leaf->values[i];
		}
		leaf->count = kept;
		right->next = leaf->next;
		leaf->next = right;
	}
	Leaf *target = right != nullptr && key >= right->keys[0] ? right : leaf;
	const unsigned slot = place(target->keys, target->count, key);
	for (uint64_t i = target->count; i > slot; i--) {
		target->keys[i] = target->keys[i - 1];
		target->values[i] = target->values[i - 1];
	}
	target->keys[slot] = key;
	target->values[slot] = value;
	target->count++;

	/* What was split off goes into the parent, which may be split in turn. */
	void *child = right;
	uint64_t first = right != nullptr ? right->keys[0] : 0;
	for (unsigned level = levels_; child != nullptr && level-- > 0;) {
		Inner *inner = path[level];
		if (inner->count < ENTRIES) {
			put_child(inner, slots[level], first, child);
			return true;
		}
		Inner *beside = static_cast<Inner *>(node(used_++));
		const unsigned kept = ENTRIES / 2;
		const uint64_t middle = inner->keys[kept];
		beside->count = ENTRIES - kept - 1;
		for (unsigned i = kept + 1; i < ENTRIES; i++)
			beside->keys[i - kept - 1] = inner->keys[i];
		for (unsigned i = kept + 1; i <= ENTRIES; i++)
			beside->children[i - kept - 1] = inner->children[i];
		inner->count = kept;
		if (slots[level] > kept)
			put_child(beside, slots[level] - kept - 1, first, child);
		else
			put_child(inner, slots[level], first, child);
		child = beside;
		first = middle;
	}
	if (child != nullptr) {
		Inner *root = static_cast<Inner *>(node(used_++));
		root->count = 1;
		root->keys[0] = first;
		root->children[0] = root_;
		root->children[1] = child;
		root_ = root;
		levels_++;
	}
	return true;
}

#endif
