-- Give a job back to the end of its queue. `charge` says what is counted against it: '' nothing (a server's
-- fault, a worker that leaves), 'failures' a failed try, 'deaths' a server that died with it.
-- KEYS: a block, rq:job:<job>
-- ARGV: job, token, charge, adopted
-- RETURNS: 1 (released) or 0 (the lease was not this one's)

local d = block(1)
local job, job_hash = ARGV[1], KEYS[BLOCK + 1]
local lease = parse_lease(redis.call('HGET', d.leases, job))
local v = job_fields(job_hash, 'data', ARGV[3])
if not lease or lease.token ~= ARGV[2] then return 0 end
check(d)

free_lease(d, job, lease)
-- A hash without data is hollow: nothing is written to it, and the producer finds the id again. A stock
-- worker's hash is RQ's to end, so its id goes back through the producer as well.
if v[1] and ARGV[4] ~= '1' then
  if ARGV[3] ~= '' then redis.call('HSET', job_hash, ARGV[3], text(int(v[2]) + 1)) end
  redis.call('HSET', job_hash, 'status', 'queued')
  redis.call('RPUSH', d.queue, job)
end
return 1
