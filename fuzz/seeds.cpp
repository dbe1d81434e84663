/*
 * What the fuzzers of executables begin with: `cargo xtask fuzz` compiles it in several
 * ways, without a library, so that the files are small. Forms that a decoder has to know:
 * switches, loops, tail calls, exceptions, vectors, string instructions, odd control flow.
 */
using size = decltype(sizeof 0);

extern "C" {
void *somewhere(void *, size);
[[noreturn]] void never(int);
int volatile global;
extern int elsewhere;
int entry(int, char **);
}

namespace {

struct Node {
	Node *next;
	long value;
};

[[gnu::noinline]] long walked(const Node *node)
{
	long sum = 0;
	for (; node; node = node->next)
		sum += node->value;
	return sum;
}

[[gnu::noinline]] int switched(int which, int *out)
{
	switch (which) {
	case 0: out[0] += 1; return 7;
	case 1: out[1] = out[0] * 3; return which + global;
	case 2: out[2] ^= 5; break;
	case 3: global = out[3]; break;
	case 4: out[4] -= out[2]; return 1;
	case 5: never(which);
	case 6: out[6] = elsewhere; break;
	case 9: out[5] = out[6] >> 3; return out[7];
	}
	return out[0];
}

[[gnu::noinline]] void summed(float *a, const float *b, int count)
{
	for (int i = 0; i < count; ++i)
		a[i] += b[i] * 2.5F;
}

struct Guard {
	~Guard() { global = global + 1; }
};

} // namespace

#ifdef WITH_EXCEPTIONS
extern "C" int caught(int which)
{
	Guard guard;
	try {
		if (which > 3)
			throw which;
		somewhere(nullptr, 3);
	} catch (int thrown) {
		return thrown + 1;
	} catch (...) {
		global = 2;
		throw;
	}
	return 0;
}
#endif

extern "C" int computed(const unsigned char *code)
{
	static const void *const labels[] = { &&stop, &&more, &&less, &&twice };
	int value = 0;
	goto *labels[*code++ & 3];
more:
	++value;
	goto *labels[*code++ & 3];
less:
	value -= elsewhere;
	goto *labels[*code++ & 3];
twice:
	value *= 2;
	goto *labels[*code++ & 3];
stop:
	return value;
}

extern "C" void *tail(void *to, long bytes)
{
	__asm__ volatile("rep movsb" : "+D"(to), "+c"(bytes) : "S"(&global) : "memory");
	return somewhere(to, 4);
}

extern "C" int entry(int count, char **words)
{
	static Node second = { nullptr, 5 };
	Node first = { &second, count };
	float numbers[16] = {};
	int out[8] = {};
	summed(numbers, numbers + 1, count & 15);
	__asm__ volatile("xorl %%eax, %%eax\n1: decl %%ecx\njnz 1b\ncpuid"
			 : : "c"(count) : "eax", "ebx", "edx", "memory");
	return switched(count, out) + static_cast<int>(walked(&first)) + words[0][0] +
	       static_cast<int>(numbers[3]);
}

#ifdef WHOLE
extern "C" {
int elsewhere = 4;
void *somewhere(void *to, size) { return to; }
void never(int) { for (;;) __asm__ volatile("hlt"); }
}
#endif
