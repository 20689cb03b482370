-- Bring back the jobs of dead workers: those named, and those whose leases have all run out in a Redis that has
-- been heard for a whole lease. A worker's leases are taken as one, whatever `limit` says of further workers. Its
-- death is charged to the suspect it held (and see died_beside), or to all it held where there was none; the third death
-- sends a job to the back, and when it is poison is_poison() says. Where it had taken no job since the collector began, the run went
-- down as a whole, and nobody is charged. A lease that ran out a whole lease ago under a worker that lives was never heard
-- of by it (the answer of a claim got lost): it alone comes back, and nothing is charged. A lease that cannot be read
-- belongs to nobody: its job comes back too, and what is counted of leases is counted anew; `thorough` looks for such.
-- KEYS: run:seen, run, a block for each dataset
-- ARGV: lease_ms, datasets, limit, thorough, then the names of workers known to be dead
-- RETURNS: for each dead worker that held jobs {name, jobs brought back, jobs rejected}; '' is the name of damaged leases

local lease_ms, count, limit = int(ARGV[1]), int(ARGV[2]), int(ARGV[3])
local now = now_ms()
local seen = redis.call('GET', KEYS[1])
local may_expire = seen and now - int(seen) >= lease_ms
local began = whole(redis.call('HGET', KEYS[2], 'began'), 'field began of ' .. KEYS[2])
if began > now then began = 0 end  -- the clock was put back since
local named, found = {}, ARGV[4] == '1' or #ARGV > 4
for i = 5, #ARGV do named[ARGV[i]] = true end

local sets = {}
for i = 1, count do
  local d = block(3 + (i - 1) * BLOCK)
  sets[i] = d
  check(d)
  found = found or (may_expire and redis.call('ZCOUNT', d.expiry, '-inf', text(now)) > 0)
  found = found or redis.call('HLEN', d.leases) ~= redis.call('ZCARD', d.expiry)
  d.passed = {}
  for _, job in ipairs(redis.call('LRANGE', d.intermediate, 0, 99)) do
    if redis.call('HEXISTS', d.done, job) == 1 then d.passed[#d.passed + 1] = job end
  end
end

-- Who holds what.
local workers, order = {}, {}
for _, d in ipairs(found and sets or {}) do
  local expiry, ends = redis.call('ZRANGE', d.expiry, 0, -1, 'WITHSCORES'), {}
  for at = 1, #expiry, 2 do ends[expiry[at]] = int(expiry[at + 1]) end
  local all = redis.call('HGETALL', d.leases)
  d.held, d.ages_held, d.tokens, d.damaged = 0, {}, {}, {}
  for at = 1, #all, 2 do
    local lease = parse_lease(all[at + 1])
    if not lease then
      d.damaged[#d.damaged + 1] = { job = all[at], is_done = redis.call('HEXISTS', d.done, all[at]) == 1,
        data = job_fields(job_key(all[at]), 'data')[1] }
    else
      d.held, d.tokens[all[at] .. ':' .. lease.token] = d.held + lease.reserved, true
      d.ages_held['f' .. lease.bucket] = (d.ages_held['f' .. lease.bucket] or 0) + 1
      local w = workers[lease.worker]
      if not w then
        w = { name = lease.worker, jobs = {}, back = 0, rejected = 0 }
        workers[lease.worker], order[#order + 1] = w, w
      end
      local job = { d = d, job = all[at], lease = lease, ends = ends[all[at]] or 0 }
      w.jobs[#w.jobs + 1] = job
      w.suspect = w.suspect or lease.suspect == '1'
      w.is_of_this_start = w.is_of_this_start or lease.start >= began
      w.lives = w.lives or job.ends > now
    end
    ends[all[at]] = nil
  end
  d.stray = ends
  d.is_damaged = #d.damaged > 0 or next(ends) or whole(redis.call('HGET', d.hash, 'reserved'), field(d, 'reserved')) ~= d.held
end

local plan, dead, all_deaths = {}, {}, deaths_of(KEYS[2])
for _, w in ipairs(order) do
  w.dead = named[w.name] or (may_expire and not w.lives)
  if #plan == 0 or #plan + #w.jobs <= limit then
    if w.dead then dead[#dead + 1] = w end
    if w.dead and w.is_of_this_start then all_deaths = all_deaths + 1 end
    for _, p in ipairs(w.jobs) do
      if w.dead or (may_expire and p.ends <= now - lease_ms) then
        local v = job_fields(job_key(p.job), 'data', 'deaths', 'attempt', 'others', 'beside')
        p.worker, p.data, p.deaths, p.attempt = w, v[1], int(v[2]), int(v[3])
        p.others, p.beside = int(v[4]), int(v[5])
        plan[#plan + 1] = p
      end
    end
  end
end

heard(KEYS[1], now, lease_ms)
if #dead > 0 then redis.call('HSET', KEYS[2], 'deaths', text(all_deaths)) end
-- What a stock worker popped after it had been ended: RQ leaves such an id there, and nobody would be finished.
for _, d in ipairs(sets) do
  for _, job in ipairs(d.passed) do redis.call('LREM', d.intermediate, 0, job) end
end
local mended, back = false, 0
for _, d in ipairs(found and sets or {}) do
  if d.is_damaged then
    mended = true
    for job in pairs(d.stray) do redis.call('ZREM', d.expiry, job) end
    for _, p in ipairs(d.damaged) do
      redis.call('HDEL', d.leases, p.job)
      redis.call('ZREM', d.expiry, p.job)
      if p.data and not p.is_done then
        redis.call('HSET', job_key(p.job), 'status', 'queued')
        redis.call('LPUSH', d.queue, p.job)
        back = back + 1
      end
    end
    redis.call('HSET', d.hash, 'reserved', text(d.held))
    for _, name in ipairs(redis.call('HKEYS', d.ages)) do
      if string.sub(name, 1, 1) == 'f' then redis.call('HDEL', d.ages, name) end
    end
    for name, count in pairs(d.ages_held) do redis.call('HSET', d.ages, name, count) end
    for _, entry in ipairs(redis.call('ZRANGEBYSCORE', d.started, '+inf', '+inf')) do
      if not d.tokens[entry] then redis.call('ZREM', d.started, entry) end
    end
  end
end
for _, p in ipairs(plan) do
  free_lease(p.d, p.job, p.lease)
  local death = nil
  if p.worker.dead and p.worker.is_of_this_start then
    if p.worker.suspect and p.lease.suspect ~= '1' then
      death = died_beside(p.deaths, p.others, p.beside, all_deaths)
    else
      death = one_more_death(p.deaths, p.others, all_deaths)
    end
  end
  if p.data and death and death.poison then
    end_as_poison(p.d, p.job, p.data, death.deaths, p.attempt)
    p.worker.rejected = p.worker.rejected + 1
  elseif p.data then
    if death then note_death(job_key(p.job), death) end
    redis.call('HSET', job_key(p.job), 'status', 'queued')
    redis.call((death or p).deaths >= 3 and 'RPUSH' or 'LPUSH', p.d.queue, p.job)
    p.worker.back = p.worker.back + 1
  end
end
local answer = mended and { { '', back, 0 } } or {}
for _, w in ipairs(dead) do answer[#answer + 1] = { w.name, w.back, w.rejected } end
return answer
