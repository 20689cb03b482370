-- Bring back the jobs of dead workers: those named, and those whose lease has run out in a Redis that has
-- been heard for a whole lease. A worker's leases are taken as one. Its death is charged to the suspect
-- it held, or to all it held where there was none; the third death sends a job to the back, the fourth rejects it.
-- KEYS: run:seen, a block for each dataset
-- ARGV: lease_ms, datasets, limit, then the names of workers known to be dead
-- RETURNS: for each dead worker {name, jobs brought back, jobs rejected}

local lease_ms, count, limit = int(ARGV[1]), int(ARGV[2]), int(ARGV[3])
local now = now_ms()
local seen = redis.call('GET', KEYS[1])
local may_expire = seen and now - int(seen) >= lease_ms
local dead, found = {}, false
for i = 4, #ARGV do dead[ARGV[i]], found = { back = 0, rejected = 0 }, true end

local sets = {}
for i = 1, count do
  local d = block(2 + (i - 1) * BLOCK)
  sets[i] = d
  if may_expire then
    for _, job in ipairs(redis.call('ZRANGEBYSCORE', d.expiry, '-inf', text(now), 'LIMIT', 0, 1000)) do
      local lease = parse_lease(redis.call('HGET', d.leases, job))
      if lease and not dead[lease.worker] then dead[lease.worker], found = { back = 0, rejected = 0 }, true end
    end
  end
end

local plan, planned = {}, 0
if found then
  for _, d in ipairs(sets) do
    local all = redis.call('HGETALL', d.leases)
    for at = 1, #all, 2 do
      local lease = parse_lease(all[at + 1])
      if lease and dead[lease.worker] and planned < limit then
        local v = redis.call('HMGET', job_key(all[at]), 'data', 'deaths', 'attempt')
        planned = planned + 1
        plan[planned] = { d = d, job = all[at], lease = lease, data = v[1], deaths = int(v[2]), attempt = int(v[3]) }
        if lease.suspect == '1' then dead[lease.worker].suspect = true end
      end
    end
    check(d)
  end
end

heard(KEYS[1], now, lease_ms)
for _, p in ipairs(plan) do
  local fate = dead[p.lease.worker]
  free_lease(p.d, p.job, p.lease)
  if p.data then
    local deaths = p.deaths
    if p.lease.suspect == '1' or not fate.suspect then deaths = deaths + 1 end
    if deaths >= 4 then
      redis.call('XADD', p.d.results, '*', 'kind', 'poison', 'job', p.job, 'data', p.data, 'deaths', deaths, 'attempts', p.attempt)
      redis.call('HSET', p.d.done, p.job, 0)
      redis.call('HINCRBY', p.d.hash, 'rejected', 1)
      redis.call('UNLINK', job_key(p.job))
      fate.rejected = fate.rejected + 1
    else
      redis.call('HSET', job_key(p.job), 'status', 'queued', 'deaths', text(deaths))
      if deaths >= 3 then redis.call('RPUSH', p.d.queue, p.job) else redis.call('LPUSH', p.d.queue, p.job) end
      fate.back = fate.back + 1
    end
  end
end
local answer = {}
for name, fate in pairs(dead) do
  if fate.back + fate.rejected > 0 then answer[#answer + 1] = { name, fate.back, fate.rejected } end
end
return answer
