# Makes a password of the database for this project, and the URL with it, unless they are there.
# The servers' user 65532 may read the URL, and only root the password.
set -eu
cd /run/pglimit
if [ -s database-url ]; then exit 0; fi
password=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
umask 077
printf %s "$password" >password
printf '%s\n' "postgres://pglimit:$password@postgres/pglimit?sslmode=disable" >database-url.new
chown 65532:65532 database-url.new
mv database-url.new database-url
