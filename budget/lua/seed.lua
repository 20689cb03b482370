-- Tell the ledger what the files hold. The file's number wins, and the counter moves by the difference alone,
-- so a repetition, a lost tail, an emptied Redis and a stale copy are all mended by the same call.
-- `forget` takes ids out of done which are in neither file nor stream. `recount` sets what is counted of done and of
-- the leases to what they hold: a Redis that was killed may have run half a script of its former life at its start.
-- KEYS: a block
-- ARGV: mode (seed, forget, recount), then for each id: job, tokens, truncated
-- RETURNS: ids whose entry changed, and spent

local d = block(1)
if ARGV[1] == 'recount' then
  local spent, reserved, committed, rejected, ages, buckets = 0, 0, 0, 0, {}, {}
  local function age(name) ages[name] = (ages[name] or 0) + 1 end
  for _, value in ipairs(redis.call('HVALS', d.done)) do
    local tokens = int(value)
    spent = spent + tokens
    if tokens > 0 then
      committed = committed + 1
      buckets[tokens] = buckets[tokens] or bucket(tokens)
      age('c' .. buckets[tokens])
    else
      rejected = rejected + 1
    end
  end
  for _, value in ipairs(redis.call('HVALS', d.leases)) do
    local lease = parse_lease(value)
    if lease then
      reserved = reserved + lease.reserved
      age('f' .. lease.bucket)
    end
  end
  check(d)
  redis.call('SET', d.spent, text(spent))
  redis.call('HSET', d.hash, 'reserved', text(reserved), 'committed', committed, 'rejected', rejected)
  redis.call('UNLINK', d.ages)
  for name, number in pairs(ages) do redis.call('HSET', d.ages, name, number) end
  return { 0, spent }
end

local forget = ARGV[1] == 'forget'
local plan, difference = {}, 0
for at = 2, #ARGV, 3 do
  local job, tokens = ARGV[at], int(ARGV[at + 1])
  local known = redis.call('HGET', d.done, job)
  local lease = parse_lease(redis.call('HGET', d.leases, job))
  local p = { job = job, tokens = tokens, truncated = int(ARGV[at + 2]), known = known and int(known), lease = lease }
  if forget then
    p.changed = known and true or false
    difference = difference - int(known)
  else
    p.changed = not known or int(known) ~= tokens
    difference = difference + tokens - int(known)
  end
  plan[#plan + 1] = p
end
local committed, rejected, truncated, aged = 0, 0, 0, {}
local function age(tokens, by)
  if tokens > 0 then
    local field = 'c' .. bucket(tokens)
    aged[field] = (aged[field] or 0) + by
  end
end
for _, p in ipairs(plan) do
  if p.changed then
    if p.known then
      age(p.known, -1)
      if p.known > 0 then committed = committed - 1 else rejected = rejected - 1 end
      if forget then truncated = truncated - p.truncated end
    end
    if not forget then
      age(p.tokens, 1)
      if p.tokens > 0 then committed = committed + 1 else rejected = rejected + 1 end
      if not p.known or p.known == 0 then truncated = truncated + p.truncated end
    end
  end
end
check(d)

local changes = 0
for _, p in ipairs(plan) do
  if p.changed then
    changes = changes + 1
    if forget then redis.call('HDEL', d.done, p.job) else redis.call('HSET', d.done, p.job, text(p.tokens)) end
  end
  if not forget then
    redis.call('SREM', d.dropped, p.job)
    if p.lease then
      free_lease(d, p.job, p.lease)
      -- Nobody else would end its hash: its worker's commit is answered as done already.
      if p.lease.adopted ~= '1' then redis.call('UNLINK', job_key(p.job)) end
    end
  end
end
local spent = redis.call('INCRBY', d.spent, text(difference))
for field, by in pairs(aged) do if by ~= 0 then count_age(d, field, by) end end
if committed ~= 0 then redis.call('HINCRBY', d.hash, 'committed', committed) end
if rejected ~= 0 then redis.call('HINCRBY', d.hash, 'rejected', rejected) end
if truncated ~= 0 then redis.call('HINCRBY', d.hash, 'truncated', truncated) end
if difference < 0 then redis.call('HDEL', d.hash, 'full') end
if forget and changes > 0 then redis.call('HDEL', d.hash, 'exhausted') end
return { changes, spent }
