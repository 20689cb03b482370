-- Store a completion and spend its tokens, once: an id that is done already is answered as a success.
-- A record whose texts stayed behind is stored only beside what tells them: Redis may have been emptied of it.
-- KEYS: a block, rq:job:<job>, rq:worker:<worker>, run:pieces:<digest>
-- ARGV: job, token, tokens, bucket, truncated, adopted, told, record
-- RETURNS: 1 (stored), 0 (was done already) or 2 (not stored: nothing tells its texts), and spent

local d = block(1)
local job_hash, worker_hash = KEYS[BLOCK + 1], KEYS[BLOCK + 2]
local job, tokens, adopted = ARGV[1], int(ARGV[3]), ARGV[6] == '1'

check(d)
if redis.call('HEXISTS', d.done, job) == 1 then return { 0, int(redis.call('GET', d.spent)) } end
if ARGV[7] == '1' and redis.call('EXISTS', KEYS[BLOCK + 3]) == 0 then return { 2, 0 } end
local lease = parse_lease(redis.call('HGET', d.leases, job))
local worker_listed = is_hash(worker_hash)
local successes = worker_listed and int(redis.call('HGET', worker_hash, 'successful_job_count'))

redis.call('XADD', d.results, '*', 'kind', 'commit', 'job', job, 'tokens', ARGV[3], 'truncated', ARGV[5], 'line', ARGV[8])
redis.call('HSET', d.done, job, ARGV[3])
local spent = redis.call('INCRBY', d.spent, ARGV[3])
redis.call('HINCRBY', d.hash, 'committed', 1)
if ARGV[5] == '1' then redis.call('HINCRBY', d.hash, 'truncated', 1) end
count_age(d, 'c' .. bucket(tokens), 1)
if lease then free_lease(d, job, lease) end
forget_registries(d, job)
-- A stock worker's job: RQ ends its hash itself, and would leave a hollow one behind if it were gone.
if not adopted then redis.call('UNLINK', job_hash) end
if worker_listed then redis.call('HSET', worker_hash, 'successful_job_count', text(successes + 1)) end
return { 1, spent }
