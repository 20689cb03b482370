-- End a prompt that can never work, with its reason. Without a token it is the producer's: no lease is meant.
-- KEYS: a block, rq:job:<job>
-- ARGV: job, token, adopted, line
-- RETURNS: 1 (rejected), 0 (was done already), 2 (another attempt holds it)

local d = block(1)
local job, token = ARGV[1], ARGV[2]
if redis.call('HEXISTS', d.done, job) == 1 then return 0 end
local lease = parse_lease(redis.call('HGET', d.leases, job))
if lease and lease.token ~= token then return 2 end
check(d)

redis.call('XADD', d.results, '*', 'kind', 'reject', 'job', job, 'line', ARGV[4])
redis.call('HSET', d.done, job, 0)
redis.call('HINCRBY', d.hash, 'rejected', 1)
if lease then free_lease(d, job, lease) end
forget_registries(d, job)
if ARGV[3] ~= '1' then redis.call('UNLINK', KEYS[BLOCK + 1]) end
return 1
