-- Drop up to `limit` queued jobs of a dataset that has its tokens; remembered, so that a raised cap brings them back.
-- KEYS: run, a block, then spent and hash of every dataset
-- ARGV: limit, all, dataset
-- RETURNS: jobs dropped (-1: the dataset does not have its tokens), and jobs still queued

local d = block(2)
local limit = int(ARGV[1])
-- A late release may queue a job of a dataset that had run out of prompts: it still counts.
if complete(facts(d), totals(KEYS[1], 2 + BLOCK, int(ARGV[2]))) ~= 'budget' then return { -1, redis.call('LLEN', d.queue) } end
local ids = redis.call('LRANGE', d.queue, 0, limit - 1)
local prefix = ARGV[3] .. '-'
local dropping, hashes, ended = {}, {}, {}
for _, job in ipairs(ids) do
  if redis.call('HEXISTS', d.done, job) == 1 then
    ended[#ended + 1] = job_key(job)
  elseif redis.call('HEXISTS', d.leases, job) == 0 and string.sub(job, 1, #prefix) == prefix then
    -- Anything else in the queue is somebody's own job: it leaves the queue and is no prompt of ours.
    dropping[#dropping + 1], hashes[#hashes + 1] = job, job_key(job)
  end
end
redis.call('SCARD', d.dropped)

if #ids > 0 then redis.call('LPOP', d.queue, #ids) end
if #dropping > 0 then
  redis.call('SADD', d.dropped, unpack(dropping))
  redis.call('UNLINK', unpack(hashes))
end
if #ended > 0 then redis.call('UNLINK', unpack(ended)) end
return { #dropping, redis.call('LLEN', d.queue) }
