"""DB-bench on a MySQL-protocol server: MySQL 8 or MariaDB 10.11."""
