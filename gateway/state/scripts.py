"""What a Redis server does in one step, in its Lua.

A shelf lives under its name: ``name:values:owner:key`` the values, ``name:use`` and ``name:use:owner`` when each was
last used, ``name:due`` when it expires, ``name:size`` what each takes, and the sums: ``*`` of all, ``*owner`` of an
owner's.
"""

from __future__ import annotations

__all__ = ["EXTEND", "SHELVE", "TAKE"]

EXTEND = """
local last = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local at = last[2] and tonumber(last[2]) or 0
for i = 3, #ARGV do
  redis.call('ZADD', KEYS[1], at + i, ARGV[i])
end
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -(tonumber(ARGV[2]) + 1))
redis.call('PEXPIRE', KEYS[1], ARGV[1])
"""
"""``KEYS: set; ARGV: ttl in ms, cap, members…``. The score is the place; it only rises."""

_SHELF = """
local shelf = KEYS[1]
local use, due, size = shelf .. ':use', shelf .. ':due', shelf .. ':size'
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local owner, member = ARGV[1], ARGV[1] .. ':' .. ARGV[2]
"""

TAKE = (
    _SHELF
    + """
local found = redis.call('GET', shelf .. ':values:' .. member)
if found then
  redis.call('ZADD', use, 'XX', now, member)
  redis.call('ZADD', use .. ':' .. owner, 'XX', now, member)
end
return found
"""
)
"""``KEYS: shelf; ARGV: owner, key``."""

SHELVE = (
    _SHELF
    + """
local value, weight = ARGV[3], tonumber(ARGV[4])
local limit, owner_limit, ttl = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

local function drop(gone)
  local whose = string.match(gone, '^[^:]*')
  local freed = redis.call('HGET', size, gone)
  redis.call('DEL', shelf .. ':values:' .. gone)
  redis.call('ZREM', use, gone)
  redis.call('ZREM', due, gone)
  redis.call('ZREM', use .. ':' .. whose, gone)
  redis.call('HDEL', size, gone)
  if freed then
    redis.call('HINCRBY', size, '*', -freed)
    if redis.call('HINCRBY', size, '*' .. whose, -freed) <= 0 then
      redis.call('HDEL', size, '*' .. whose)
    end
  end
end

local function make_room(part, sum, most)
  while (tonumber(redis.call('HGET', size, sum)) or 0) + weight > most do
    local oldest = redis.call('ZRANGE', part, 0, 0)
    if not oldest[1] then return redis.call('HDEL', size, sum) end
    drop(oldest[1])
  end
end

for _, gone in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, 1000)) do drop(gone) end
drop(member)
make_room(use .. ':' .. owner, '*' .. owner, owner_limit)
make_room(use, '*', limit)
redis.call('SET', shelf .. ':values:' .. member, value, 'PX', ttl)
redis.call('ZADD', use, now, member)
redis.call('ZADD', use .. ':' .. owner, now, member)
redis.call('ZADD', due, now + ttl * 1000, member)
redis.call('HSET', size, member, weight)
redis.call('HINCRBY', size, '*', weight)
redis.call('HINCRBY', size, '*' .. owner, weight)
for _, key in ipairs({use, due, size, use .. ':' .. owner}) do redis.call('PEXPIRE', key, ttl * 2) end
"""
)
"""``KEYS: shelf; ARGV: owner, key, value, weight, limit, limit of an owner, ttl in ms``."""
