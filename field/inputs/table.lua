-- Reads random places of a table, small (fits the second cache) or large. Lua and LuaJIT.
local n = arg[1] == "small" and 512 or 16 * 1024 * 1024
local count = tonumber(arg[2])
local t = {}
for i = 1, n do t[i] = i * 3 % 65536 end
local function walk(steps)
  local state, sum = 12345, 0
  for _ = 1, steps do
    state = (state * 1103515245 + 12345) % 2147483648
    sum = sum + t[state % n + 1] + t[(state + sum) % n + 1]
  end
  return sum
end
walk(100000)
local begun = os.clock()
local sum = walk(count)
local took = os.clock() - begun
print(string.format("sum %d\nop_ns %.4f\nphase_s %.4f", sum, took / count * 1e9, took))
