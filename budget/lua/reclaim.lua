-- Bring back the jobs of dead workers: those named, and those whose leases have all run out in a Redis that has
-- been heard for a whole lease. A worker's leases are taken as one, whatever `limit` says of further workers. Its
-- death is charged to the suspect it held, or to all it held where there was none; the third death sends a job to
-- the back, the fourth rejects it. A lease that ran out a whole lease ago under a worker that lives was never heard
-- of by it (the answer of a claim got lost): it alone comes back, and nothing is charged.
-- KEYS: run:seen, a block for each dataset
-- ARGV: lease_ms, datasets, limit, then the names of workers known to be dead
-- RETURNS: for each dead worker that held jobs {name, jobs brought back, jobs rejected}

local lease_ms, count, limit = int(ARGV[1]), int(ARGV[2]), int(ARGV[3])
local now = now_ms()
local seen = redis.call('GET', KEYS[1])
local may_expire = seen and now - int(seen) >= lease_ms
local named, found = {}, #ARGV > 3
for i = 4, #ARGV do named[ARGV[i]] = true end

local sets = {}
for i = 1, count do
  local d = block(2 + (i - 1) * BLOCK)
  sets[i] = d
  check(d)
  found = found or (may_expire and redis.call('ZCOUNT', d.expiry, '-inf', text(now)) > 0)
end

-- Who holds what.
local workers, order = {}, {}
for _, d in ipairs(found and sets or {}) do
  local expiry, ends = redis.call('ZRANGE', d.expiry, 0, -1, 'WITHSCORES'), {}
  for at = 1, #expiry, 2 do ends[expiry[at]] = int(expiry[at + 1]) end
  local all = redis.call('HGETALL', d.leases)
  for at = 1, #all, 2 do
    local lease = parse_lease(all[at + 1])
    if lease then
      local w = workers[lease.worker]
      if not w then
        w = { name = lease.worker, jobs = {}, back = 0, rejected = 0 }
        workers[lease.worker], order[#order + 1] = w, w
      end
      local job = { d = d, job = all[at], lease = lease, ends = ends[all[at]] or 0 }
      w.jobs[#w.jobs + 1] = job
      w.suspect = w.suspect or lease.suspect == '1'
      w.lives = w.lives or job.ends > now
    end
  end
end

local plan, dead = {}, {}
for _, w in ipairs(order) do
  w.dead = named[w.name] or (may_expire and not w.lives)
  if #plan == 0 or #plan + #w.jobs <= limit then
    if w.dead then dead[#dead + 1] = w end
    for _, p in ipairs(w.jobs) do
      if w.dead or (may_expire and p.ends <= now - lease_ms) then
        local v = redis.call('HMGET', job_key(p.job), 'data', 'deaths', 'attempt')
        p.worker, p.data, p.deaths, p.attempt = w, v[1], int(v[2]), int(v[3])
        if w.dead and (p.lease.suspect == '1' or not w.suspect) then p.deaths = p.deaths + 1 end
        plan[#plan + 1] = p
      end
    end
  end
end

heard(KEYS[1], now, lease_ms)
for _, p in ipairs(plan) do
  free_lease(p.d, p.job, p.lease)
  if p.data and p.worker.dead and p.deaths >= 4 then
    redis.call('XADD', p.d.results, '*', 'kind', 'poison', 'job', p.job, 'data', p.data, 'deaths', p.deaths, 'attempts', p.attempt)
    redis.call('HSET', p.d.done, p.job, 0)
    redis.call('HINCRBY', p.d.hash, 'rejected', 1)
    redis.call('UNLINK', job_key(p.job))
    p.worker.rejected = p.worker.rejected + 1
  elseif p.data then
    redis.call('HSET', job_key(p.job), 'status', 'queued', 'deaths', text(p.deaths))
    redis.call(p.deaths >= 3 and 'RPUSH' or 'LPUSH', p.d.queue, p.job)
    p.worker.back = p.worker.back + 1
  end
end
local answer = {}
for _, w in ipairs(dead) do answer[#answer + 1] = { w.name, w.back, w.rejected } end
return answer
