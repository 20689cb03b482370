-- Give a job back to the end of its queue. `charge` counts a failure against it; a server's fault charges nothing.
-- KEYS: a block, rq:job:<job>
-- ARGV: job, token, charge, adopted
-- RETURNS: 1 (released) or 0 (the lease was not this one's), and the job's failures

local d = block(1)
local job, job_hash = ARGV[1], KEYS[BLOCK + 1]
local lease = parse_lease(redis.call('HGET', d.leases, job))
local v = redis.call('HMGET', job_hash, 'data', 'failures')
if not lease or lease.token ~= ARGV[2] then return { 0, int(v[2]) } end
redis.call('LLEN', d.queue); redis.call('ZCARD', d.expiry); redis.call('HLEN', d.ages); redis.call('ZCARD', d.started)

free_lease(d, job, lease)
local failures = int(v[2])
-- A hash without data is hollow: nothing is written to it, and the producer finds the id again. A stock
-- worker's hash is RQ's to end, so its id goes back through the producer as well.
if v[1] and ARGV[4] ~= '1' then
  if ARGV[3] == '1' then failures = redis.call('HINCRBY', job_hash, 'failures', 1) end
  redis.call('HSET', job_hash, 'status', 'queued')
  redis.call('RPUSH', d.queue, job)
end
return { 1, failures }
