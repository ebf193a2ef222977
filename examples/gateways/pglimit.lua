-- http-request lua.pglimit URL: sets txn.limit to the status of the answer, and txn.retry_after.
core.register_action("pglimit", { "http-req" }, function(txn, url)
	local answer = core.httpclient():get({
		url = url,
		headers = { ["x-forwarded-for"] = { txn.f:src() }, ["pglimit-gateway"] = { "1" } }, -- ["pglimit-token"] = { os.getenv("PGLIMIT_TOKEN") }
		timeout = 2000,
	})
	txn:set_var("txn.limit", answer.status or 0)
	local after = answer.headers and answer.headers["retry-after"]
	txn:set_var("txn.retry_after", after and after[0] or "")
end, 1)
