-- Give a job back to the end of its queue. `charge` says what is counted against it: '' nothing (a server's
-- fault, a worker that leaves), 'failures' a failed try, 'deaths' a server that died with it (one too many is its end),
-- 'beside' a server that died with it and with a suspect.
-- KEYS: run, a block, rq:job:<job>
-- ARGV: job, token, charge, adopted
-- RETURNS: 1 (released), 0 (the lease was not this one's) or 2 (rejected as poison)

local d = block(2)
local job, charge, job_hash = ARGV[1], ARGV[3], KEYS[BLOCK + 2]
local lease = parse_lease(redis.call('HGET', d.leases, job))
local v = job_fields(job_hash, 'data', 'failures', 'deaths', 'others', 'attempt', 'beside')
local all_deaths = deaths_of(KEYS[1])
local death = charge == 'deaths' and one_more_death(int(v[3]), int(v[4]), all_deaths)
  or charge == 'beside' and died_beside(int(v[3]), int(v[4]), int(v[6]), all_deaths)
if not lease or lease.token ~= ARGV[2] then return 0 end
check(d)

free_lease(d, job, lease)
-- A hash without data is hollow: nothing is written to it, and the producer finds the id again. A stock
-- worker's hash is RQ's to end, so its id goes back through the producer as well.
if not v[1] or ARGV[4] == '1' then return 1 end
if death and death.poison then
  end_as_poison(d, job, v[1], death.deaths, int(v[5]))
  return 2
end
if charge == 'failures' then redis.call('HSET', job_hash, 'failures', text(int(v[2]) + 1)) end
if death then note_death(job_hash, death) end
redis.call('HSET', job_hash, 'status', 'queued')
redis.call('RPUSH', d.queue, job)
return 1
