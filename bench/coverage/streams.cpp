/*
 * What `cargo xtask bench coverage` lets libstdc++ execute: streams, locales, containers,
 * regular expressions, exceptions. Prints one line, so that a run that went wrong is seen.
 */
#include <algorithm>
#include <cstdio>
#include <functional>
#include <iomanip>
#include <iostream>
#include <list>
#include <locale>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <typeinfo>
#include <unordered_map>
#include <vector>

namespace {

constexpr int rounds = 150;

struct Base {
	virtual ~Base() = default;
	virtual long value() const = 0;
};

struct Left : virtual Base {
	explicit Left(long n) : n(n) {}
	long value() const override { return n; }
	long n;
};

struct Right : virtual Base {
	long value() const override { return 3; }
};

struct Both : Left, Right {
	explicit Both(long n) : Left(n) {}
	long value() const override { return Left::value() + Right::value(); }
};

/* Something with a destructor that an exception has to run. */
struct Guard {
	explicit Guard(long &count) : count(count) {}
	~Guard() { ++count; }
	long &count;
};

long thrown(int depth, long &guards)
{
	Guard guard(guards);
	if (depth == 0) {
		switch (guards % 4) {
		case 0:
			throw std::runtime_error("a runtime error " + std::to_string(guards));
		case 1:
			return static_cast<long>(std::string("short").at(40));
		case 2:
			throw std::system_error(std::make_error_code(std::errc::no_such_file_or_directory));
		default:
			throw static_cast<int>(guards);
		}
	}
	try {
		return thrown(depth - 1, guards) + 1;
	} catch (const std::out_of_range &) {
		throw;
	}
}

long exceptions(int seed)
{
	long guards = seed;
	long caught = 0;
	for (int depth = 0; depth < 8; ++depth) {
		try {
			caught += thrown(depth, guards);
		} catch (const std::system_error &error) {
			caught += error.code().value();
		} catch (const std::exception &error) {
			caught += static_cast<long>(std::string(error.what()).size());
		} catch (...) {
			caught += 7;
		}
	}
	return caught + guards;
}

long streams(int seed)
{
	std::ostringstream out;
	out.imbue(std::locale::classic());
	for (int i = 0; i < 60; ++i) {
		out << std::setw(8) << std::hex << std::showbase << i * seed << ' ' << std::dec
		    << std::fixed << std::setprecision(3) << i / 7.0 << ' ' << std::scientific << i * 1e5
		    << ' ' << std::boolalpha << (i % 2 == 0) << ' ' << std::quoted("w" + std::to_string(i))
		    << '\n';
	}
	const std::string text = out.str();
	std::istringstream in(text);
	std::string line;
	long total = 0;
	while (std::getline(in, line)) {
		std::istringstream words(line);
		long number = 0;
		double real = 0;
		double large = 0;
		bool even = false;
		std::string quoted;
		words >> std::hex >> number >> std::dec >> real >> large >> std::boolalpha >> even >>
			std::quoted(quoted);
		if (!words)
			throw std::logic_error("unreadable: " + line);
		total += number + static_cast<long>(real) + even + static_cast<long>(quoted.size());
	}
	return total;
}

long containers(int seed)
{
	std::mt19937 random(static_cast<unsigned>(seed));
	std::uniform_int_distribution<int> pick(0, 500);
	std::map<std::string, long> ordered;
	std::unordered_map<int, std::string> hashed;
	std::set<int> unique;
	std::list<long> linked;
	std::vector<std::shared_ptr<Base>> shared;
	for (int i = 0; i < 150; ++i) {
		const int number = pick(random);
		ordered["key " + std::to_string(number)] += number;
		hashed.emplace(number, std::string(static_cast<size_t>(number % 40), 'x'));
		unique.insert(number);
		linked.push_back(number);
		if (i % 3 == 0)
			shared.push_back(std::make_shared<Both>(number));
		else
			shared.push_back(std::make_shared<Left>(number));
	}
	linked.sort();
	std::stable_sort(shared.begin(), shared.end(),
			 [](const auto &a, const auto &b) { return a->value() < b->value(); });
	for (auto at = ordered.begin(); at != ordered.end();)
		at = at->second % 3 == 0 ? ordered.erase(at) : std::next(at);
	for (int i = 0; i < 100; ++i)
		unique.erase(i);
	long casts = 0;
	for (const auto &one : shared)
		casts += dynamic_cast<const Right *>(one.get()) != nullptr;
	const std::function<long(long, long)> add = std::plus<long>();
	return std::accumulate(linked.begin(), linked.end(), 0L, add) + casts +
	       static_cast<long>(ordered.size() + hashed.size() + unique.size());
}

long expressions(int seed)
{
	const std::regex pattern(R"((\w+)-(\d+)(?:\.(\d*))?)", std::regex::ECMAScript);
	std::string text;
	for (int i = 0; i < 12; ++i)
		text += "item-" + std::to_string(i * seed) + "." + std::to_string(i) + ", ";
	long total = 0;
	for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at)
		total += std::stol((*at)[2]) + static_cast<long>((*at)[3].length());
	return total + static_cast<long>(std::regex_replace(text, pattern, "$2:$1").size());
}

long threads(int seed)
{
	long results[3] = {};
	std::vector<std::thread> running;
	for (int i = 0; i < 3; ++i)
		running.emplace_back([&results, i, seed] { results[i] = exceptions(seed + i); });
	for (auto &thread : running)
		thread.join();
	return std::accumulate(std::begin(results), std::end(results), 0L);
}

} // namespace

int main()
{
	long total = 0;
	for (int seed = 1; seed < rounds; ++seed) {
		total += exceptions(seed) + streams(seed) + containers(seed);
		if (seed % 5 == 0)
			total += expressions(seed) + threads(seed);
	}
	std::cout << "c++ " << total << std::endl;
	return 0;
}
