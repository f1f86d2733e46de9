-- Tables that statements are compared on, then one statement a line: see test_mysql_statements.py
CREATE TABLE emp (id INT, name VARCHAR(50), dept_id INT, boss_id INT, salary DECIMAL(10,2), bonus DOUBLE, hired DATE, active BOOLEAN, rate FLOAT);
INSERT INTO emp VALUES (1, 'Ann', 1, NULL, 5000.50, 0.5, '2019-01-31', 1, 1.25), (2, 'bob', 1, 1, 3000.00, 2.5, '2020-02-29', 1, 0.1), (3, 'Bob', 2, 1, 3000.00, NULL, '2020-02-28', 0, 2.5), (4, 'Carl ', 2, 3, NULL, -1.5, NULL, 1, NULL), (5, 'dora', NULL, 3, -12.35, 10000000000.0, '2021-12-31', NULL, 3.5), (6, NULL, 3, 2, 0.00, 0.0, '2022-06-15', 0, -0.75), (7, 'O''Hara', 9, NULL, 99999.99, 3.5, '2019-12-01', 1, 10000000000.0), (8, '', 1, 2, 1234.57, -2.5, '2023-03-01', 0, 0.3);
CREATE TABLE dept (id INT, title VARCHAR(30), city TEXT, budget BIGINT, opened DATETIME);
INSERT INTO dept VALUES (1, 'Sales', 'Paris', 9007199254740993, '2020-01-01 08:30:00'), (2, 'sales', 'paris ', 100, '2021-05-05 23:59:59'), (3, 'R&D_1', 'Rome', NULL, NULL), (4, '100%', '', -7, '1999-12-31 00:00:00');
CREATE TABLE sales (sid INT, emp_id INT, item VARCHAR(20), qty INT, price DECIMAL(8,3), sold_at DATETIME, note TEXT);
INSERT INTO sales VALUES (1, 1, 'pen', 10, 1.125, '2022-01-01 10:00:00', '10'), (2, 1, 'Pen', 3, 2.500, '2022-01-15 12:30:15', '3 boxes'), (3, 2, 'ink', NULL, 3.335, '2022-02-01 00:00:00', NULL), (4, 2, 'ink', 7, NULL, '2022-02-14 09:05:07', 'abc'), (5, 3, 'pad', 0, 0.005, NULL, ''), (6, NULL, 'PAD', -5, 10.000, '2023-07-04 18:45:00', '2022-01-01'), (7, 5, NULL, 2, 99999.999, '2022-03-31 23:59:59', '1e2'), (8, 3, 'pen', 10, 1.125, '2022-01-01 10:00:00', '007');
CREATE TABLE tags (word VARCHAR(20), grp CHAR(5), n SMALLINT, x DOUBLE);
INSERT INTO tags VALUES ('alpha', 'a', 1, 0.1), ('Alpha', 'A', 2, 0.2), ('beta ', 'b', 3, 0.3), ('beta', 'b', 3, NULL), ('a_b', 'c', -1, 1e+20), ('a%b', NULL, 0, -0.5), (NULL, '', NULL, 1.5), ('10', '1', 10, 2.5), ('9', '1', 9, 3.5), (' lead', 'z', 5, 1e-07);

SELECT e.name, d.title FROM emp e JOIN dept d ON e.dept_id = d.id ORDER BY e.id
SELECT e.name, d.title FROM emp AS e LEFT JOIN dept AS d ON e.dept_id = d.id WHERE d.id IS NULL
SELECT d.title FROM dept d LEFT JOIN emp e ON e.dept_id = d.id WHERE e.id IS NULL
SELECT d.title, e.name FROM emp e RIGHT JOIN dept d ON e.dept_id = d.id
SELECT a.name, b.name AS boss FROM emp a JOIN emp b ON a.boss_id = b.id
SELECT a.name, b.name FROM emp a LEFT JOIN emp b ON a.boss_id = b.id AND b.active
SELECT e.name, s.item, d.title FROM emp e INNER JOIN sales s ON s.emp_id = e.id LEFT JOIN dept d ON d.id = e.dept_id WHERE s.qty > 2 ORDER BY s.sid
SELECT T1.name FROM emp AS T1 JOIN sales AS T2 ON T1.id = T2.emp_id GROUP BY T1.id, T1.name HAVING COUNT(*) > 1
SELECT T1.name, COUNT(*) FROM emp AS T1 JOIN sales AS T2 ON T1.id = T2.emp_id GROUP BY T2.emp_id ORDER BY COUNT(*) DESC, T1.id LIMIT 1
SELECT name FROM emp WHERE id NOT IN (SELECT emp_id FROM sales)
SELECT name FROM emp WHERE id NOT IN (SELECT emp_id FROM sales WHERE emp_id IS NOT NULL)
SELECT name FROM emp e WHERE EXISTS (SELECT 1 FROM sales s WHERE s.emp_id = e.id AND s.qty > 5)
SELECT name FROM emp e WHERE NOT EXISTS (SELECT * FROM sales s WHERE s.emp_id = e.id)
SELECT name, salary FROM emp e WHERE salary > (SELECT AVG(salary) FROM emp i WHERE i.dept_id = e.dept_id)
SELECT name, (SELECT COUNT(*) FROM sales s WHERE s.emp_id = e.id) AS n FROM emp e ORDER BY n DESC, id
SELECT name, (SELECT MAX(price) FROM sales s WHERE s.emp_id = e.id) AS m FROM emp e HAVING m > 1
SELECT dept_id, COUNT(*) AS c, AVG(salary) FROM emp GROUP BY dept_id HAVING AVG(salary) > 100 ORDER BY c DESC, dept_id
SELECT dept_id, SUM(salary) / COUNT(*) AS q FROM emp GROUP BY dept_id HAVING SUM(salary) / COUNT(*) >= 0
SELECT dept_id, MAX(salary) - MIN(salary) AS spread FROM emp GROUP BY dept_id HAVING spread > 0 OR spread IS NULL
SELECT COUNT(DISTINCT item) FROM sales
SELECT COUNT(DISTINCT item, qty) FROM sales
SELECT COUNT(DISTINCT emp_id, item) AS c, COUNT(emp_id), COUNT(*) FROM sales
SELECT YEAR(hired) AS y, COUNT(*) FROM emp GROUP BY y ORDER BY y
SELECT YEAR(hired), COUNT(*) FROM emp GROUP BY 1 ORDER BY 1 DESC
SELECT YEAR(hired), MONTH(hired), COUNT(*) FROM emp GROUP BY YEAR(hired), MONTH(hired) ORDER BY 1, 2
SELECT title, COUNT(*) FROM dept GROUP BY title
SELECT LOWER(item) AS item, COUNT(*), SUM(qty) FROM sales GROUP BY LOWER(item) ORDER BY 1
SELECT item, SUM(qty * price) FROM sales GROUP BY item ORDER BY item
SELECT DATE_FORMAT(sold_at, '%Y-%m') AS month, SUM(qty*price) AS revenue FROM sales WHERE sold_at IS NOT NULL GROUP BY month ORDER BY month
SELECT DATE(sold_at) d, COUNT(*) FROM sales GROUP BY d ORDER BY d
SELECT name FROM emp ORDER BY CASE WHEN dept_id IS NULL THEN 0 ELSE 1 END, dept_id DESC, id
SELECT name, salary FROM emp ORDER BY salary IS NULL, salary DESC, id
SELECT name, salary FROM emp ORDER BY -salary DESC, id
SELECT name FROM emp ORDER BY name DESC, id
SELECT name FROM emp ORDER BY LENGTH(name), name, id
SELECT id FROM emp ORDER BY FIELD(dept_id, 2, 1, 3), id
SELECT id FROM emp ORDER BY salary * 2 + IFNULL(bonus, 0) DESC, id LIMIT 3
SELECT name FROM emp WHERE dept_id = 1 UNION SELECT title FROM dept
(SELECT name FROM emp ORDER BY id LIMIT 2) UNION ALL (SELECT title FROM dept ORDER BY id DESC LIMIT 2)
(SELECT id, name FROM emp WHERE id < 3) UNION (SELECT id, title FROM dept) ORDER BY id DESC, name LIMIT 4
SELECT id FROM emp UNION SELECT salary FROM emp
SELECT id FROM emp UNION ALL SELECT name FROM emp
SELECT 1 UNION SELECT 1.0 UNION SELECT '1'
SELECT 1 AS a UNION ALL SELECT NULL UNION ALL SELECT 2.50
SELECT hired FROM emp UNION SELECT sold_at FROM sales
SELECT AVG(c) FROM (SELECT COUNT(*) AS c FROM sales GROUP BY emp_id) AS t
SELECT t.dept_id, t.s FROM (SELECT dept_id, SUM(salary) s FROM emp GROUP BY dept_id) t WHERE t.s > 100 ORDER BY t.s
SELECT MAX(m) FROM (SELECT emp_id, SUM(qty) AS m FROM sales GROUP BY emp_id) x
SELECT e.name, t.total FROM emp e JOIN (SELECT emp_id, SUM(qty*price) total FROM sales GROUP BY emp_id) t ON t.emp_id = e.id ORDER BY t.total DESC
WITH t AS (SELECT emp_id, COUNT(*) c FROM sales GROUP BY emp_id) SELECT e.name, t.c FROM emp e JOIN t ON t.emp_id = e.id
WITH a AS (SELECT * FROM emp WHERE active), b AS (SELECT dept_id, COUNT(*) n FROM a GROUP BY dept_id) SELECT * FROM b ORDER BY n DESC, dept_id
WITH RECURSIVE seq AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM seq WHERE n < 5) SELECT n, n * n FROM seq
WITH RECURSIVE chain AS (SELECT id, name, boss_id, 0 AS lvl FROM emp WHERE boss_id IS NULL UNION ALL SELECT e.id, e.name, e.boss_id, c.lvl + 1 FROM emp e JOIN chain c ON e.boss_id = c.id) SELECT id, lvl FROM chain ORDER BY lvl, id
WITH RECURSIVE f(a, b) AS (SELECT 0, 1 UNION ALL SELECT b, a + b FROM f WHERE b < 50) SELECT a FROM f
SELECT id, ROW_NUMBER() OVER (ORDER BY salary DESC, id) AS rn FROM emp
SELECT id, RANK() OVER (ORDER BY salary DESC) AS rnk, DENSE_RANK() OVER (ORDER BY salary DESC) FROM emp
SELECT id, RANK() OVER (PARTITION BY dept_id ORDER BY salary DESC) r FROM emp ORDER BY id
SELECT id, SUM(qty) OVER (PARTITION BY emp_id) FROM sales s JOIN emp ON emp.id = s.emp_id
SELECT sid, SUM(qty) OVER (ORDER BY sid ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) FROM sales
SELECT sid, SUM(qty) OVER (ORDER BY sid) rs, AVG(qty) OVER (ORDER BY sid ROWS 2 PRECEDING) FROM sales
SELECT sid, FIRST_VALUE(item) OVER (PARTITION BY emp_id ORDER BY sid), LAST_VALUE(item) OVER (PARTITION BY emp_id ORDER BY sid) FROM sales
SELECT sid, NTH_VALUE(item, 2) OVER (ORDER BY sid) FROM sales
SELECT * FROM (SELECT id, name, ROW_NUMBER() OVER (PARTITION BY dept_id ORDER BY salary DESC, id) AS rn FROM emp) t WHERE rn = 1
SELECT dept_id, SUM(salary), SUM(SUM(salary)) OVER () FROM emp GROUP BY dept_id
SELECT id, COUNT(*) OVER w, SUM(salary) OVER w FROM emp WINDOW w AS (PARTITION BY dept_id)
SELECT id, salary / SUM(salary) OVER () * 100 AS pct FROM emp
SELECT id, ROUND(salary * 100.0 / SUM(salary) OVER (), 2) FROM emp
SELECT sid, MAX(price) OVER (PARTITION BY item) AS m FROM sales
SELECT ROUND(2.5), ROUND(-2.5), ROUND(3.5), ROUND(2.5e0), ROUND(3.5e0), ROUND(-2.5e0), ROUND(0.5e0)
SELECT id, ROUND(bonus), ROUND(rate), ROUND(salary), ROUND(salary, 1), ROUND(bonus, 1), ROUND(rate, 1) FROM emp
SELECT ROUND(1.005, 2), ROUND(1.005e0, 2), ROUND(1234.567, -2), ROUND(1250, -2), ROUND(-1250, -2), ROUND(15, -1)
SELECT CAST(bonus AS SIGNED), CAST(rate AS SIGNED), CAST(salary AS SIGNED) FROM emp
SELECT CAST(2.5 AS SIGNED), CAST(-2.5 AS SIGNED), CAST(2.5e0 AS SIGNED), CAST('2.5' AS SIGNED), CAST('12abc' AS SIGNED)
SELECT CAST(1e10 AS DECIMAL(5,2)), CAST(99999 AS DECIMAL(4,1))
SELECT CAST(0.1 AS DOUBLE), CAST('0.1' AS DOUBLE) + 0.2, 0.1 + 0.2, 0.1e0 + 0.2e0
SELECT CAST(hired AS CHAR), CAST(salary AS CHAR), CAST(bonus AS CHAR), CAST(rate AS CHAR), CAST(active AS CHAR) FROM emp
SELECT CAST(hired AS SIGNED), hired + 0, sold_at + 0 FROM emp JOIN sales ON sales.emp_id = emp.id
SELECT CAST('2022-01-05' AS DATE), CAST('2022-13-05' AS DATE), CAST('2022-01-05 10:11:12' AS DATETIME), CAST('10:11:12' AS TIME)
SELECT CAST(20220105 AS DATE), CAST('20220105' AS DATE), CAST('22-1-5' AS DATE)
SELECT CONVERT('12', SIGNED), CONVERT(12.7, CHAR), CONVERT('abc' USING utf8mb4)
SELECT 7 MOD 3, -7 MOD 3, 7 MOD -3, -7 % 3, MOD(7.5, 2), MOD(-7.5, 2), MOD(7, 0), 7 DIV 2, -7 DIV 2, 7.5 DIV 2, 7 DIV 0, -7.5 DIV 2
SELECT 1/3, 2/3, 10/4, 10/5, 1/3*3, 1.0/3, 1.00/3.0, 1/0, 5e0/3, 100/3
SELECT id, salary/3, salary*1.1, salary/7.0, salary*bonus, salary+id, salary-0.005, salary*salary FROM emp
SELECT AVG(qty), AVG(price), AVG(qty/3), SUM(qty/3), AVG(price)*2, SUM(price)/3 FROM sales
SELECT AVG(bonus), AVG(rate), SUM(rate), SUM(bonus), MAX(rate), MIN(rate) FROM emp
SELECT 9223372036854775807 + 1
SELECT 3000000000 * 3000000000, 4294967296 * 4294967296
SELECT CONCAT(name, ': ', salary), CONCAT(id, '-', bonus), CONCAT(hired, '!'), CONCAT(rate) FROM emp
SELECT CONCAT_WS(', ', name, NULL, dept_id) FROM emp
SELECT 'a' || 'b', 1 || 0, 'a' && 1, NOT 0, ! 1, 1 XOR 1, 1 XOR NULL
SELECT '3 apples' + 4, 'abc' * 2, '1e2' + 0, '0x1A' + 0, ' 7 ' + 1, '-5' - '3', '10' / '4', '7' % '4', '9' DIV '2'
SELECT note + 0, note * 1.5, -note, note DIV 2 FROM sales
SELECT sid FROM sales WHERE note = 10
SELECT sid FROM sales WHERE note = 0
SELECT sid FROM sales WHERE note > 5
SELECT sid FROM sales WHERE note = '10.0'
SELECT sid FROM sales WHERE note < 'b'
SELECT sid FROM sales WHERE qty = '10'
SELECT sid FROM sales WHERE qty = '10abc'
SELECT sid FROM sales WHERE qty > '2.5'
SELECT sid FROM sales WHERE price = '1.125'
SELECT sid FROM sales WHERE price = 1.125e0
SELECT sid FROM sales WHERE item = 0
SELECT sid FROM sales WHERE item
SELECT sid FROM sales WHERE note
SELECT sid FROM sales WHERE sold_at > '2022-02-01'
SELECT sid FROM sales WHERE sold_at >= '2022-2-1'
SELECT sid FROM sales WHERE sold_at = '2022-01-01'
SELECT sid FROM sales WHERE sold_at = '2022-01-01 10:00'
SELECT sid FROM sales WHERE sold_at BETWEEN '2022-01-01' AND '2022-02-01'
SELECT sid FROM sales WHERE DATE(sold_at) BETWEEN '2022-01-01' AND '2022-02-01'
SELECT sid FROM sales WHERE sold_at LIKE '2022-01%'
SELECT sid FROM sales WHERE sold_at > 20220201
SELECT sid FROM sales WHERE sold_at > 20220201000000
SELECT sid FROM sales WHERE YEAR(sold_at) = '2022' AND MONTH(sold_at) IN ('1', 2)
SELECT sid FROM sales WHERE sold_at IN ('2022-01-01 10:00:00', '2023-07-04')
SELECT id FROM emp WHERE hired = '2020-02-29 00:00:00'
SELECT id FROM emp WHERE hired > '2020-02-28 12:00:00'
SELECT id FROM emp WHERE hired >= 20200229
SELECT id FROM emp WHERE hired BETWEEN '2019-01-01' AND '2020-12-31'
SELECT id FROM emp WHERE hired LIKE '%-02-%'
SELECT id FROM emp WHERE hired < sold_at
SELECT e.id, s.sid FROM emp e, sales s WHERE e.hired < s.sold_at AND e.id = s.emp_id
SELECT id FROM emp WHERE hired + INTERVAL 1 YEAR > '2021-01-01'
SELECT hired + INTERVAL 1 MONTH, hired - INTERVAL 1 DAY, DATE_SUB(hired, INTERVAL 2 WEEK), hired + INTERVAL 1 QUARTER FROM emp
SELECT DATE_ADD(hired, INTERVAL 1 YEAR), DATE_ADD(hired, INTERVAL 90 MINUTE), DATE_ADD(hired, INTERVAL '1:30' HOUR_MINUTE), ADDDATE(hired, 10), SUBDATE(hired, INTERVAL 1 MONTH) FROM emp
SELECT DATEDIFF(sold_at, '2022-01-01'), TIMESTAMPDIFF(MONTH, '2022-01-15', sold_at), TIMESTAMPDIFF(YEAR, hired, '2023-06-15'), TIMESTAMPDIFF(HOUR, sold_at, '2022-03-01') FROM emp JOIN sales ON emp_id = id
SELECT LAST_DAY(hired), DAYNAME(hired), MONTHNAME(hired), WEEK(hired), WEEKDAY(hired), DAYOFYEAR(hired), YEARWEEK(hired), TO_DAYS(hired), QUARTER(hired) FROM emp
SELECT WEEK(hired, 1), WEEK(hired, 3), WEEKOFYEAR(hired) FROM emp
SELECT DATE_FORMAT(sold_at, '%W %M %e %Y %h:%i %p'), DATE_FORMAT(sold_at, '%d/%m/%y %H:%i:%s'), DATE_FORMAT(sold_at, '%T %r %j %U %a %b %c %D %k %l %%') FROM sales
SELECT STR_TO_DATE('01/02/2022', '%d/%m/%Y'), STR_TO_DATE('2022-01-05 10:11', '%Y-%m-%d %H:%i'), STR_TO_DATE('abc', '%Y'), STR_TO_DATE('Jan 5, 2022', '%b %d, %Y')
SELECT MAKEDATE(2022, 60), FROM_DAYS(738000), UNIX_TIMESTAMP('1970-01-02 00:00:00'), FROM_UNIXTIME(86400), SEC_TO_TIME(3700), TIME_TO_SEC('01:01:40'), MAKETIME(1, 2, 3)
SELECT '2022-01-31' + INTERVAL 1 MONTH, DATE '2022-01-31' + INTERVAL 1 MONTH, '2022-01-01' + 1, DATE '2022-01-01' + 1, DATE('2022-01-01') - DATE('2021-12-31')
SELECT MAX(hired), MIN(sold_at), MAX(sold_at) - MIN(sold_at), DATEDIFF(MAX(sold_at), MIN(sold_at)), AVG(YEAR(sold_at)), SUM(hired), AVG(hired) FROM emp, sales
SELECT hired = '2019-1-31', hired <=> NULL, hired IN ('2019-01-31'), IF(hired > '2020-01-01', 'new', 'old'), IFNULL(hired, 'none'), COALESCE(hired, '2000-01-01'), COALESCE(hired, sold_at) FROM emp LEFT JOIN sales ON emp_id = id
SELECT CASE WHEN hired IS NULL THEN 'n/a' ELSE hired END, CASE WHEN hired < '2020-01-01' THEN 1 ELSE 'later' END FROM emp
SELECT IF(active, 'yes', 'no'), IF(active = TRUE, 1, 2.5), IF(name, 1, 0), IF(salary, salary, 'none'), IF(id > 3, id, name), IF(bonus, bonus, 0) FROM emp
SELECT CASE dept_id WHEN 1 THEN 'one' WHEN 2 THEN 2 ELSE NULL END, CASE WHEN id > 4 THEN salary ELSE bonus END, CASE WHEN id > 4 THEN salary ELSE 1 END, CASE WHEN id > 4 THEN 1 ELSE 0.5 END FROM emp
SELECT IFNULL(salary, 0), IFNULL(bonus, 0), IFNULL(name, 0), IFNULL(dept_id, 'none'), IFNULL(salary, 'x'), COALESCE(NULL, dept_id, 1.5), NULLIF(dept_id, 1), NULLIF(name, 'BOB'), NULLIF(salary, 3000) FROM emp
SELECT id, salary > 1000, active = TRUE, active IS TRUE, active IS NOT FALSE, active IS UNKNOWN, NOT active, id BETWEEN 2 AND 4, name IN ('ann', 'CARL'), name LIKE 'b%' FROM emp
SELECT SUM(salary > 1000), SUM(active), AVG(active), COUNT(active OR NULL), SUM(name = 'bob'), SUM(IF(active, 1, 0)), COUNT(IF(active, 1, NULL)) FROM emp
SELECT id FROM emp WHERE active
SELECT id FROM emp WHERE NOT active
SELECT id FROM emp WHERE active IS NOT TRUE
SELECT id FROM emp WHERE dept_id <=> NULL
SELECT id FROM emp WHERE dept_id <=> boss_id
SELECT id FROM emp WHERE dept_id <> 1
SELECT id FROM emp WHERE dept_id != 1 OR dept_id IS NULL
SELECT id FROM emp WHERE (dept_id, salary) = (1, 3000)
SELECT id FROM emp WHERE (dept_id, salary) IN (SELECT dept_id, MAX(salary) FROM emp GROUP BY dept_id)
SELECT id FROM emp WHERE (dept_id, boss_id) IN ((1, 1), (2, 3))
SELECT id FROM emp WHERE id IN (1, '2', 3.0, 'x')
SELECT id FROM emp WHERE name IN ('Ann', 0)
SELECT id FROM emp WHERE salary IN ('3000', 5000.5)
SELECT id FROM emp WHERE id NOT IN (1, NULL)
SELECT id FROM emp WHERE name = 'BOB'
SELECT id FROM emp WHERE name = 'carl'
SELECT id FROM emp WHERE name = 'Carl'
SELECT id FROM emp WHERE name LIKE 'carl'
SELECT id FROM emp WHERE name LIKE 'carl_'
SELECT id FROM emp WHERE BINARY name = 'Bob'
SELECT id FROM emp WHERE name = BINARY 'bob'
SELECT id FROM emp WHERE name COLLATE utf8mb4_bin = 'Bob'
SELECT id FROM emp WHERE name = ''
SELECT id FROM emp WHERE name = ' '
SELECT id FROM emp WHERE name BETWEEN 'a' AND 'c'
SELECT id FROM emp WHERE name BETWEEN 'B' AND 'D'
SELECT id FROM emp WHERE name > 'b' AND name < 'e'
SELECT id FROM emp WHERE salary BETWEEN '0' AND '3000'
SELECT id FROM emp WHERE salary NOT BETWEEN 0 AND 3000
SELECT id FROM emp WHERE name LIKE '%''%'
SELECT id FROM emp WHERE name LIKE "%o%"
SELECT id FROM emp WHERE name NOT LIKE '%o%'
SELECT id FROM emp WHERE name REGEXP '^[ab]'
SELECT id FROM emp WHERE name RLIKE 'b$' OR name REGEXP 'ar+a'
SELECT id FROM dept WHERE title LIKE '%\%%'
SELECT id FROM dept WHERE title LIKE '100|%' ESCAPE '|'
SELECT id FROM dept WHERE title LIKE 'R&D\_1'
SELECT id FROM dept WHERE title LIKE 'R_D__'
SELECT word FROM tags WHERE word LIKE 'a\_b'
SELECT word FROM tags WHERE word LIKE 'a_b'
SELECT word FROM tags WHERE word LIKE 'a\%b'
SELECT word FROM tags WHERE word LIKE '1%'
SELECT n FROM tags WHERE n LIKE '1%'
SELECT x FROM tags WHERE x LIKE '%5'
SELECT word FROM tags WHERE word = 'beta'
SELECT DISTINCT word FROM tags
SELECT DISTINCT grp FROM tags
SELECT word, COUNT(*) FROM tags GROUP BY word
SELECT grp, COUNT(*), SUM(n), SUM(x), GROUP_CONCAT(word ORDER BY word, n) FROM tags GROUP BY grp
SELECT GROUP_CONCAT(word ORDER BY n DESC, word SEPARATOR '|') FROM tags WHERE n > 0
SELECT GROUP_CONCAT(DISTINCT grp ORDER BY grp DESC) FROM tags
SELECT GROUP_CONCAT(word, ':', n ORDER BY n, word SEPARATOR ' ') FROM tags WHERE n < 5
SELECT dept_id, GROUP_CONCAT(name ORDER BY name SEPARATOR ', ') FROM emp GROUP BY dept_id
SELECT GROUP_CONCAT(salary ORDER BY id), GROUP_CONCAT(bonus ORDER BY id), GROUP_CONCAT(hired ORDER BY id), GROUP_CONCAT(rate ORDER BY id) FROM emp
SELECT GROUP_CONCAT(DISTINCT item ORDER BY item) FROM sales
SELECT word, n FROM tags ORDER BY word DESC, n, x
SELECT word + 0 AS w, word FROM tags ORDER BY word + 0, word, n
SELECT word FROM tags ORDER BY CAST(word AS UNSIGNED) DESC, n DESC, x LIMIT 3
SELECT SUBSTRING('hello', 0), SUBSTRING('hello', -3, 2), SUBSTRING('hello', 2), SUBSTR('hello', 0, 3), SUBSTRING('hello' FROM 2 FOR 2), SUBSTRING('hello', 9), SUBSTRING('hello', 2, -1), MID('hello', 2, 3), LEFT('hello', 0), LEFT('hello', -1), RIGHT('hello', 9)
SELECT LPAD('a', 3, 'xy'), LPAD('abc', 2, 'x'), RPAD('a', 3, ''), REPEAT('a', 0), REPEAT('ab', -1), SPACE(2), INSERT('hello', 2, 2, 'XX'), INSERT('hello', 0, 2, 'XX'), INSERT('hello', 9, 2, 'XX'), LOCATE('l', 'hello', 4), LOCATE('L', 'hello'), LOCATE('', 'hello'), POSITION('l' IN 'hello'), INSTR('hello', 'LL')
SELECT SIN(1), COS(1), TAN(1), ATAN(1), ATAN2(1, 2), RADIANS(180), DEGREES(PI()), COT(1), ACOS(2), ASIN(1)
SELECT 1 = 1.0, '1' = 1, '1.0' = 1, 'a' = 'A', 'a' = 'a ', 'a' < 'B', NULL = NULL, NULL <=> NULL, 1 IN (1, NULL), 2 IN (1, NULL), 2 NOT IN (1, NULL), 0 = 'abc', '' = 0, 'abc' = 'ABC', '10' > '9', 10 > '9', 'é' = 'e'
SELECT COUNT(*), SUM(qty), AVG(qty), MIN(item), MAX(item) FROM sales WHERE sid > 100
SELECT item, COUNT(*) FROM sales WHERE sid > 100 GROUP BY item
SELECT MAX(name), MIN(name), MAX(note), MIN(note) FROM emp, sales
SELECT item, qty FROM sales GROUP BY item
SELECT DISTINCT item, qty FROM sales ORDER BY item, qty
SELECT DISTINCT UPPER(item) FROM sales
SELECT COUNT(*) total, SUM(CASE WHEN qty > 2 THEN 1 ELSE 0 END) big, SUM(CASE WHEN qty > 2 THEN price END), ROUND(100 * SUM(qty > 2) / COUNT(*), 1) pct FROM sales
SELECT CAST(COUNT(*) AS FLOAT) / 3 FROM sales
SELECT CAST(SUM(qty) AS DOUBLE) / COUNT(qty) FROM sales
SELECT SUM(qty) * 1.0 / COUNT(*), SUM(price) / SUM(qty), AVG(price * qty), MAX(price * qty), SUM(DISTINCT qty), AVG(DISTINCT price) FROM sales
SELECT emp_id, SUM(price) FROM sales GROUP BY emp_id HAVING SUM(price) > (SELECT AVG(price) FROM sales)
SELECT emp_id FROM sales GROUP BY emp_id HAVING COUNT(DISTINCT item) > 1 ORDER BY MAX(price)
SELECT emp_id FROM sales GROUP BY emp_id ORDER BY SUM(qty) DESC, emp_id LIMIT 2
SELECT * FROM emp WHERE salary = (SELECT MAX(salary) FROM emp)
SELECT name FROM emp WHERE salary >= ALL (SELECT salary FROM emp WHERE salary IS NOT NULL)
SELECT name FROM emp WHERE salary > ANY (SELECT salary FROM emp WHERE dept_id = 1)
SELECT name FROM emp WHERE dept_id = SOME (SELECT id FROM dept WHERE city = 'paris')
SELECT title FROM dept WHERE id IN (SELECT dept_id FROM emp GROUP BY dept_id HAVING COUNT(*) >= 2)
SELECT e.* FROM emp e NATURAL JOIN dept
SELECT emp.id, dept.id FROM emp CROSS JOIN dept ORDER BY emp.id, dept.id LIMIT 5
SELECT * FROM dept d1 JOIN dept d2 USING (id) ORDER BY id
SELECT id, title, name FROM dept LEFT JOIN (SELECT dept_id AS id, name FROM emp) e USING (id) ORDER BY id, name
SELECT COUNT(*) FROM emp e JOIN sales s ON e.id = s.emp_id AND s.qty > 1 JOIN dept d ON d.id = e.dept_id
SELECT name FROM emp LIMIT 0
SELECT name FROM emp ORDER BY id LIMIT 2, 3
SELECT name FROM emp ORDER BY id LIMIT 3 OFFSET 6
SELECT `name` AS `the name`, name "quoted" FROM `emp` ORDER BY `the name`, id
SELECT name AS 'n' FROM emp ORDER BY n DESC, id
SELECT emp.name n1, emp.* FROM emp ORDER BY n1, id LIMIT 2
SELECT id FROM emp WHERE TIMESTAMPDIFF(YEAR, hired, '2022-12-31') >= 2
SELECT id FROM emp WHERE MONTH(hired) = 2 AND DAY(hired) > 28
SELECT id FROM emp WHERE YEAR(hired) BETWEEN 2019 AND 2020 AND DAYOFWEEK(hired) IN (1, 7)
SELECT id FROM emp WHERE hired >= DATE_SUB('2022-06-15', INTERVAL 6 MONTH)
SELECT id FROM emp WHERE STR_TO_DATE('31,1,2019', '%d,%m,%Y') = hired
SELECT id FROM emp WHERE EXTRACT(YEAR FROM hired) = 2020 OR hired IS NULL
SELECT id FROM emp WHERE rate = 0.1
SELECT id FROM emp WHERE rate = 1.25
SELECT id, rate, rate * 2, rate + 0.1, rate = 0.3, ROUND(rate, 2), rate / 3 FROM emp
SELECT id, bonus * 3, bonus / 3, bonus + salary, -bonus, ABS(bonus), bonus % 2, FLOOR(bonus), bonus DIV 2 FROM emp
SELECT -0.0, 0 * -1, -0e0, ROUND(-0.4), ROUND(-0.4e0), CEIL(-0.5), CEIL(-0.5e0), TRUNCATE(-0.05, 1), 0.0 * -1, -salary FROM emp WHERE salary = 0
SELECT -bonus, bonus * -1, ROUND(bonus * -0.1), CONCAT(-bonus), 0 - bonus FROM emp WHERE id IN (1, 6)
SHOW TABLES
SHOW TABLES LIKE 'e%'
SELECT COLUMN_NAME, DATA_TYPE, IS_NULLABLE FROM information_schema.columns WHERE table_name = 'emp' ORDER BY ORDINAL_POSITION
SELECT TABLE_NAME FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY 1
SELECT COUNT(*) FROM INFORMATION_SCHEMA.COLUMNS WHERE TABLE_NAME = 'dept'
SELECT id, hired + INTERVAL 1 MONTH - INTERVAL 1 DAY FROM emp
SELECT id, hired + INTERVAL 1 DAY + INTERVAL 2 HOUR FROM emp
SELECT id, DATE_ADD(DATE_ADD(hired, INTERVAL 1 DAY), INTERVAL -1 MONTH) FROM emp
SELECT LAST_DAY('2022-02-01') + INTERVAL 1 DAY
SELECT * FROM emp WHERE (active OR dept_id = 2) AND NOT (salary < 100)
SELECT name, salary, CASE WHEN salary >= 5000 THEN 'high' WHEN salary >= 1000 THEN 'mid' ELSE 'low' END AS band FROM emp ORDER BY band, id
SELECT CASE WHEN salary >= 3000 THEN 'high' ELSE 'low' END AS band, COUNT(*) AS n, ROUND(AVG(salary), 2) FROM emp GROUP BY band ORDER BY n DESC, band
SELECT COALESCE(d.title, 'No dept') AS dept, COUNT(e.id) AS n FROM emp e LEFT JOIN dept d ON e.dept_id = d.id GROUP BY dept ORDER BY n DESC, dept
SELECT d.title, COUNT(e.id), SUM(e.salary), AVG(e.salary) FROM dept d LEFT JOIN emp e ON e.dept_id = d.id GROUP BY d.id, d.title ORDER BY d.id
SELECT d.title, e.name FROM dept d JOIN emp e ON e.dept_id = d.id WHERE e.salary = (SELECT MAX(salary) FROM emp WHERE dept_id = d.id) ORDER BY d.id, e.id
SELECT DISTINCT d.title FROM dept d WHERE d.id IN (SELECT dept_id FROM emp WHERE id IN (SELECT emp_id FROM sales WHERE qty >= 7)) ORDER BY d.title
SELECT name FROM emp WHERE id IN (SELECT emp_id FROM sales GROUP BY emp_id HAVING SUM(qty * price) > (SELECT AVG(t) FROM (SELECT SUM(qty * price) AS t FROM sales GROUP BY emp_id) q))
SELECT e1.name, e2.name FROM emp e1, emp e2 WHERE e1.dept_id = e2.dept_id AND e1.id < e2.id
SELECT e1.id, COUNT(e2.id) + 1 AS place FROM emp e1 LEFT JOIN emp e2 ON e2.salary > e1.salary GROUP BY e1.id ORDER BY place, e1.id
SELECT id FROM emp e1 WHERE 2 > (SELECT COUNT(DISTINCT e2.salary) FROM emp e2 WHERE e2.salary > e1.salary)
SELECT DISTINCT salary FROM emp ORDER BY salary DESC LIMIT 1, 1
SELECT (SELECT DISTINCT salary FROM emp ORDER BY salary DESC LIMIT 1 OFFSET 1) AS second
SELECT MAX(salary) FROM emp WHERE salary < (SELECT MAX(salary) FROM emp)
SELECT name, salary FROM emp WHERE salary IS NOT NULL ORDER BY ABS(salary - 3000), id LIMIT 3
SELECT CAST(SUM(qty) AS DECIMAL(10,2)) / NULLIF(COUNT(DISTINCT emp_id), 0) FROM sales
SELECT 100.0 * COUNT(CASE WHEN active = 1 THEN 1 END) / COUNT(*) FROM emp
SELECT COUNT(*) * 100 / (SELECT COUNT(*) FROM emp) FROM emp WHERE active = 1
SELECT dept_id, COUNT(*) * 100.0 / SUM(COUNT(*)) OVER () AS pct FROM emp GROUP BY dept_id ORDER BY dept_id
SELECT t.y, t.n, t.n - LAG(t.n) OVER (ORDER BY t.y) FROM (SELECT YEAR(hired) y, COUNT(*) n FROM emp GROUP BY YEAR(hired)) t
SELECT id, SUM(salary) OVER (PARTITION BY dept_id ORDER BY id ROWS UNBOUNDED PRECEDING) AS running FROM emp
SELECT id, AVG(salary) OVER (ORDER BY id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) FROM emp
SELECT id, salary - AVG(salary) OVER (PARTITION BY dept_id) AS d FROM emp
SELECT id, MIN(hired) OVER (PARTITION BY dept_id), FIRST_VALUE(name) OVER (PARTITION BY dept_id ORDER BY salary DESC, id) FROM emp
SELECT id, LAST_VALUE(name) OVER (PARTITION BY dept_id ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) FROM emp
SELECT id, DATEDIFF(hired, LAG(hired) OVER (ORDER BY hired, id)) AS gap FROM emp
SELECT id, CASE WHEN ROW_NUMBER() OVER (ORDER BY id) % 2 = 0 THEN 'even' ELSE 'odd' END FROM emp
SELECT id, SUM(qty) OVER (PARTITION BY name ORDER BY sid RANGE UNBOUNDED PRECEDING) FROM emp JOIN sales ON emp_id = id
WITH r AS (SELECT id, dept_id, salary, DENSE_RANK() OVER (PARTITION BY dept_id ORDER BY salary DESC) AS dr FROM emp) SELECT dept_id, id, salary FROM r WHERE dr <= 2 ORDER BY dept_id, id
WITH m AS (SELECT DATE_FORMAT(sold_at, '%Y-%m') ym, SUM(qty * price) rev FROM sales GROUP BY ym) SELECT ym, rev, SUM(rev) OVER (ORDER BY ym) FROM m ORDER BY ym
WITH a AS (SELECT 1 AS x), b AS (SELECT x + 1 AS y FROM a) SELECT * FROM a, b
WITH t(a, b) AS (SELECT id, name FROM emp) SELECT a FROM t WHERE b LIKE 'b%'
WITH RECURSIVE d AS (SELECT DATE('2022-01-01') AS dt UNION ALL SELECT dt + INTERVAL 1 DAY FROM d WHERE dt < '2022-01-05') SELECT dt, DAYNAME(dt) FROM d
WITH RECURSIVE n AS (SELECT 1 AS i UNION SELECT i + 1 FROM n WHERE i < 4) SELECT SUM(i) FROM n
SELECT name FROM emp INTERSECT SELECT title FROM dept
SELECT dept_id FROM emp EXCEPT SELECT id FROM dept
SELECT LOWER(name) FROM emp UNION SELECT LOWER(title) FROM dept ORDER BY 1
SELECT 'emp' AS src, COUNT(*) AS n FROM emp UNION ALL SELECT 'sales', COUNT(*) FROM sales ORDER BY n DESC, src
SELECT id AS k, name AS v FROM emp WHERE id < 3 UNION ALL SELECT sid, qty FROM sales WHERE sid < 3
SELECT salary FROM emp WHERE id = 1 UNION ALL SELECT bonus FROM emp WHERE id = 1 UNION ALL SELECT qty FROM sales WHERE sid = 1
(SELECT title FROM dept) UNION (SELECT city FROM dept) UNION ALL (SELECT 'x')
SELECT title FROM dept UNION SELECT word FROM tags UNION SELECT item FROM sales
SELECT COUNT(*) FROM (SELECT item FROM sales UNION SELECT word FROM tags) u
SELECT u.v, COUNT(*) FROM (SELECT item v FROM sales UNION ALL SELECT title FROM dept) u GROUP BY u.v
SELECT id FROM emp WHERE salary > 1000 ORDER BY 1 DESC LIMIT 2
SELECT id, salary s FROM emp WHERE s > 5
SELECT id, salary s FROM emp HAVING s > 5
SELECT id, salary * 2 AS s2 FROM emp ORDER BY s2 + id DESC
SELECT dept_id d, SUM(salary) FROM emp GROUP BY d HAVING d > 0 ORDER BY SUM(salary)
SELECT UPPER(name) name, COUNT(*) FROM emp GROUP BY name
SELECT name, COUNT(*) c FROM emp GROUP BY name HAVING c > 1
SELECT MIN(name), COUNT(*) c FROM emp GROUP BY UPPER(name) HAVING c > 1
SELECT dept_id, name FROM emp GROUP BY dept_id
SELECT e.id, e.name, COUNT(s.sid) FROM emp e LEFT JOIN sales s ON s.emp_id = e.id GROUP BY e.id, e.name HAVING COUNT(s.sid) = 0
SELECT COUNT(*) FROM emp HAVING COUNT(*) > 100
SELECT SUM(salary) FROM emp WHERE 1 = 0
SELECT id FROM emp WHERE COUNT(*) > 1
SELECT id, SUM(salary) FROM emp
SELECT unknown_fn(1)
SELECT id FROM emp e, dept d
SELECT e.nope FROM emp e
SELECT id FROM emp WHERE name = (SELECT name FROM emp)
SELECT * FROM emp WHERE id IN (SELECT id, name FROM emp)
SELECT id FROM emp LIMIT -1
SELECT id FROM emp ORDER BY 9
SELECT id FROM emp GROUP BY 5
SELECT id FROM emp ORDER BY nope
SELECT id name FROM emp WHERE name = 1
SELECT id FROM emp WHERE id = 1 AND
SELECT id, FROM emp
SELECT FROM emp
SELECT id FROM emp WHERE name LIKE
SELECT id FROM emp e JOIN dept d
SELECT * FROM missing.t
SELECT emp.id FROM emp e
SELECT id, id FROM (SELECT id, id FROM emp) t
SELECT COUNT(id, name) FROM emp
SELECT MAX(SUM(salary)) FROM emp GROUP BY dept_id
SELECT 1 + 'a', 'abc' > 1, 'a' + 'b'
SELECT name + 0, name * 2, name > 0, -name FROM emp
SELECT id FROM emp WHERE name + 0 = 0
SELECT id FROM emp WHERE name > 5
SELECT id FROM emp WHERE id = '1 '
SELECT id FROM emp WHERE id = ' 1'
SELECT id FROM emp WHERE id = '1.0'
SELECT id FROM emp WHERE id LIKE 1
SELECT id FROM emp WHERE id = TRUE
SELECT id FROM emp WHERE salary = '3000.00'
SELECT id FROM emp WHERE salary = '3000'
SELECT id FROM emp WHERE bonus = '2.5'
SELECT id FROM emp WHERE bonus IN (0.5, 2.5)
SELECT id FROM emp WHERE bonus = 0.5
SELECT id FROM emp WHERE rate < 0.3
SELECT id FROM emp WHERE rate <= 0.3
SELECT id FROM emp WHERE rate IN (0.1, 1.25)
SELECT id FROM emp WHERE rate BETWEEN 0.1 AND 1.25
SELECT id FROM emp WHERE active = 'true'
SELECT id FROM emp WHERE active = '1'
SELECT id FROM emp WHERE active IN (TRUE)
SELECT id FROM emp WHERE active IS FALSE
SELECT id FROM emp WHERE active <> 1
SELECT id FROM emp WHERE hired IS NULL OR YEAR(hired) = 2019
SELECT id FROM emp WHERE YEAR(hired) = '2019'
SELECT id FROM emp WHERE MONTH(hired) IN (2, 12)
SELECT id FROM emp WHERE DAYNAME(hired) = 'thursday'
SELECT id FROM emp WHERE hired BETWEEN DATE_SUB('2020-06-01', INTERVAL 6 MONTH) AND '2020-06-01'
SELECT id FROM emp WHERE DATE_FORMAT(hired, '%Y-%m') = '2020-02'
SELECT id FROM emp WHERE DATE_FORMAT(hired, '%m') = 2
SELECT id FROM emp WHERE SUBSTRING(hired, 1, 4) = '2020'
SELECT id FROM emp WHERE LEFT(hired, 7) = '2020-02'
SELECT id FROM emp WHERE hired LIKE '2020%'
SELECT id FROM emp WHERE CONCAT(hired, '') = '2020-02-29'
SELECT id FROM emp WHERE hired = DATE('2020-02-29 11:11:11')
SELECT id FROM emp WHERE hired = CAST('2020-02-29 11:11:11' AS DATETIME)
SELECT id FROM emp WHERE hired > CAST('2020-02-28' AS DATETIME)
SELECT id FROM emp WHERE hired IN ('2020-02-29', '2020-2-28', NULL)
SELECT id FROM emp WHERE hired NOT IN ('2020-02-29')
SELECT id FROM emp WHERE hired <> '2020-02-29' AND hired != '2019-01-31'
SELECT id FROM emp WHERE hired = 20200229
SELECT id FROM emp WHERE hired > 2020
SELECT id FROM emp WHERE '2020-02-29' = hired
SELECT MAX(hired) > '2020-01-01', MIN(hired) + INTERVAL 1 DAY, MAX(YEAR(hired)) - MIN(YEAR(hired)) FROM emp
SELECT sid FROM sales WHERE TIME(sold_at) > '10:00:00'
SELECT sid FROM sales WHERE TIME(sold_at) BETWEEN '09:00' AND '12:30:15'
SELECT sid FROM sales WHERE HOUR(sold_at) >= 12 ORDER BY sold_at DESC
SELECT sid, DATE_FORMAT(sold_at, '%H:%i') AS t, TIME_FORMAT(sold_at, '%H.%i') FROM sales
SELECT sid, sold_at, DATE(sold_at) = '2022-01-01', sold_at = '2022-01-01', sold_at + INTERVAL 30 SECOND, DATE_ADD(sold_at, INTERVAL '1 2' DAY_HOUR) FROM sales
SELECT sid, TIMESTAMPDIFF(MINUTE, sold_at, '2022-02-01'), TIMESTAMPDIFF(WEEK, sold_at, '2022-03-01'), TIMESTAMPDIFF(QUARTER, sold_at, '2023-03-01'), TIMESTAMPDIFF(SECOND, '2022-01-01', sold_at) FROM sales
SELECT sid, price * qty AS total, ROUND(price * qty, 1), ROUND(price, 2), TRUNCATE(price, 2), FORMAT(price, 2), CEIL(price), FLOOR(price), price DIV 1, price % 1, ROUND(price * qty / 3, 3) FROM sales
SELECT sid, ROUND(qty / 3, 2), ROUND(qty / 4), ROUND(qty * 0.5), ROUND(qty * 0.5e0), qty / 2, qty * 0.1, qty / 0.3, (qty + 1) / (qty - 2) FROM sales
SELECT AVG(salary / 3), SUM(salary / 7), AVG(salary * 0.15), SUM(salary) * 1.1, AVG(salary) - 0.5, AVG(salary) * 12, ROUND(AVG(salary) * 12, 2), AVG(salary) > 3000 FROM emp WHERE id < 5
SELECT AVG(bonus), ROUND(AVG(bonus), 2), SUM(bonus) / 3, MAX(bonus) - MIN(bonus), COUNT(bonus) FROM emp WHERE id < 4
SELECT ROUND(AVG(rate), 2), SUM(rate), MAX(rate), MIN(rate), AVG(rate * 2), SUM(rate) / COUNT(rate) FROM emp WHERE id < 4
SELECT AVG(active), SUM(active) / COUNT(*), ROUND(AVG(active) * 100, 1), MAX(active), MIN(active) FROM emp
SELECT COUNT(*), COUNT(name), COUNT(DISTINCT name), COUNT(DISTINCT dept_id), COUNT(DISTINCT salary), COUNT(DISTINCT hired) FROM emp
SELECT GROUP_CONCAT(name), GROUP_CONCAT(DISTINCT dept_id), GROUP_CONCAT(dept_id ORDER BY dept_id DESC) FROM emp WHERE id <= 3
SELECT GROUP_CONCAT(CONCAT(name, '=', salary) ORDER BY salary DESC, id SEPARATOR '; ') FROM emp
SELECT dept_id, GROUP_CONCAT(DISTINCT name ORDER BY name DESC SEPARATOR '/') g FROM emp GROUP BY dept_id HAVING g IS NOT NULL
SELECT name, LENGTH(name), CHAR_LENGTH(name), TRIM(name) = name, CONCAT('[', name, ']'), name = 'carl', REPLACE(name, ' ', '_') FROM emp
SELECT name, LEFT(name, 1), RIGHT(name, 1), SUBSTRING(name, 2, 1), UPPER(LEFT(name, 1)), CONCAT(UPPER(LEFT(name, 1)), LOWER(SUBSTRING(name, 2))) FROM emp
SELECT name, name < 'c', name = 'ANN', name <> 'bob', name IN ('bob'), name BETWEEN 'a' AND 'c', name > '', STRCMP(name, 'bob'), name LIKE 'B_B', LOCATE('O', name) FROM emp
SELECT word, grp, CONCAT(grp, '|'), LENGTH(grp), grp = 'A ', UPPER(grp) FROM tags
SELECT grp, COUNT(*), COUNT(DISTINCT word) FROM tags GROUP BY grp ORDER BY grp
SELECT DISTINCT LOWER(word), n FROM tags ORDER BY n, 1
SELECT n, x, n * x, x / n, n + 0.1, x + 0.1, x * 10, ROUND(x, 1), FLOOR(x), x = 0.1, x > 0.2, CAST(x AS CHAR), CONCAT(x, ''), CAST(x AS DECIMAL(30,5)) FROM tags
SELECT SUM(x), AVG(x), MIN(x), MAX(x), SUM(n), AVG(n), SUM(n * x) FROM tags WHERE x < 100
SELECT n, n / 2, n DIV 2, n % 2, n / 3 * 3, n * 1.0 / 3, -n, n = 3.0, n = '3', n IN ('3', 5) FROM tags
SELECT CONCAT(n, x), CONCAT(n / 3), CONCAT(n * 1.10), CONCAT(x * 3), CONCAT(x / 3) FROM tags
SELECT 1.0, 1.10, .5, 5., 1e0, 0.1 * 3, 1.1 * 1.1, 2.50 / 5, 10 / 3, 10 / 3.0, 1 / 7.00, 22 / 7, 1e0 / 3, 5 / 2 * 2, 0.1e0 * 3
SELECT 7 / 2, 7.0 / 2, 7 DIV 2, 7 % 2, -7 / 2, 6 / 3, 0 / 5, 1 / 3 + 1 / 3 + 1 / 3, 2 / 3 + 0.00001, ROUND(2 / 3, 2), ROUND(1 / 3, 6), TRUNCATE(2 / 3, 3), CEIL(7 / 2), FLOOR(-7 / 2)
SELECT 10 % 3.5, 10.5 % 3, -10 % 3, MOD(-10, 3), MOD(10.25, 3), MOD(1e1, 3), 5.5 DIV 1.5, 10 DIV 0.3
SELECT ROUND(0.5), ROUND(1.5), ROUND(-0.5), ROUND(2.675, 2), ROUND(2.675e0, 2), ROUND(1.45, 1), ROUND(1.45e0, 1), ROUND(123, -1), ROUND(125, -1), ROUND('2.5'), ROUND('1.005', 2), ROUND(NULL), ROUND(1, NULL)
SELECT LENGTH(12.50), LENGTH(1 / 3), CHAR_LENGTH(TRUE), REVERSE(123), LEFT(12345, 2), SUBSTRING(3.14159, 1, 4), UPPER(1), CONCAT(0.10, ''), REPLACE(1001, 0, 9), LPAD(7, 3, 0), REPEAT(1, 3), 12 LIKE '1%', INSTR(12345, 34)
SELECT 'a' = 'á', 'ß' = 'ss', 'A' LIKE 'a', 'ab' LIKE 'a_', 'a%' LIKE 'a\%', 'abc' LIKE '%', '' LIKE '', NULL LIKE 'a', 'a' LIKE NULL, 'A' REGEXP 'a', 'abc' REGEXP '^a.c$', 'x' NOT REGEXP 'y', 'a.b' REGEXP 'a\\.b'
SELECT NOT 5, NOT 0, NOT NULL, !0, 5 AND 0, 5 OR NULL, NULL AND 1, 1 XOR 0, NOT 1 + 1, NOT (1 = 2), 1 = 1 = 1, 2 > 1 = 1, 5 IS TRUE, 0 IS FALSE, NULL IS UNKNOWN, 'a' IS NOT NULL
SELECT COALESCE(1, 'a'), COALESCE(NULL, 1.5, 'x'), IFNULL(1, 'a'), IF(1, 1, 'a'), IF(0, 1, 2.5), CASE 1 WHEN '1' THEN 'y' END, CASE 'a' WHEN 'A' THEN 1 END, CASE NULL WHEN NULL THEN 1 ELSE 2 END, NULLIF(1, '1'), NULLIF('a', 'b'), NULLIF(1.50, 2)
SELECT GREATEST(1, 2.5), GREATEST('b', 'A'), LEAST(3, 1.0), LEAST('b', 'A'), GREATEST(1.0, 2), GREATEST(1e0, 2), LEAST(NULL, 1)
SELECT id, (SELECT title FROM dept WHERE dept.id = emp.dept_id) AS t, (SELECT COUNT(*) FROM emp x WHERE x.boss_id = emp.id) AS reports FROM emp
SELECT id, EXISTS (SELECT 1 FROM sales WHERE emp_id = emp.id) AS has, id IN (SELECT emp_id FROM sales) AS i, id NOT IN (SELECT emp_id FROM sales) AS n FROM emp
SELECT id, salary > (SELECT AVG(salary) FROM emp), salary / (SELECT SUM(salary) FROM emp) FROM emp
SELECT id FROM emp WHERE salary < ALL (SELECT salary FROM emp WHERE dept_id = 1)
SELECT id FROM emp WHERE salary <> ALL (SELECT salary FROM emp WHERE dept_id = 2)
SELECT id FROM emp WHERE salary = ANY (SELECT salary FROM emp WHERE dept_id = 2)
SELECT id FROM emp WHERE salary > ALL (SELECT salary FROM emp WHERE 1 = 0)
SELECT id FROM emp WHERE name IN (SELECT item FROM sales)
SELECT id FROM emp WHERE id IN (SELECT note FROM sales)
SELECT id FROM emp WHERE dept_id IN (SELECT id FROM dept WHERE budget > 0 OR budget IS NULL) AND name IS NOT NULL
SELECT * FROM dept WHERE city IS NOT NULL AND city <> ''
SELECT * FROM dept ORDER BY opened DESC
SELECT * FROM dept ORDER BY city, title DESC, id
SELECT DISTINCT city FROM dept
SELECT d.id, s.sid FROM dept d JOIN sales s ON DATE(s.sold_at) > d.opened WHERE d.id = 1
SELECT id, budget % 7, budget DIV 3, budget & 7 FROM dept WHERE budget < 1000
SELECT e.name, d.title, s.item FROM emp e JOIN dept d ON e.dept_id = d.id JOIN sales s ON s.emp_id = e.id ORDER BY e.id, s.sid
SELECT e.id, d.id FROM emp e LEFT JOIN dept d ON d.id = e.dept_id AND d.budget > 0 WHERE d.id IS NULL OR d.id = 1
SELECT * FROM emp e JOIN dept d USING (id)
SELECT id, e.name, d.title FROM emp e JOIN dept d USING (id) WHERE id < 3
SELECT * FROM emp NATURAL JOIN dept
SELECT e.id FROM emp e STRAIGHT_JOIN dept d ON d.id = e.dept_id
SELECT e.id, s.sid FROM (emp e JOIN dept d ON d.id = e.dept_id) LEFT JOIN sales s ON s.emp_id = e.id
SELECT a.id, b.id, c.id FROM emp a LEFT JOIN emp b ON b.id = a.boss_id LEFT JOIN emp c ON c.id = b.boss_id ORDER BY a.id
SELECT SQL_NO_CACHE id FROM emp
SELECT ALL id FROM emp
SELECT id FROM emp FOR UPDATE
SELECT HIGH_PRIORITY id FROM emp
SELECT SQL_CALC_FOUND_ROWS id FROM emp LIMIT 2
SELECT DISTINCTROW dept_id FROM emp
SELECT id /* c */ FROM emp -- tail
SELECT id FROM emp # tail
SELECT id FROM emp;
SELECT id AS `order`, name AS `select` FROM emp ORDER BY `order`
SELECT e.id AS total, e.name AS year, e.salary AS value, e.dept_id AS count FROM emp e ORDER BY total
SELECT COUNT(*) AS count, MAX(salary) max, MIN(salary) AS min, SUM(salary) sum, AVG(salary) avg FROM emp
SELECT YEAR(hired) year, MONTH(hired) month, DAY(hired) day FROM emp ORDER BY year, month, day, id
SELECT name AS status, id AS date, id AS type, id AS level, id AS position, id AS role, id AS user, id AS text, id AS time FROM emp WHERE id = 1
SELECT CAST('2022-01-01' AS DATE) + INTERVAL 1 DAY, DATE('2022-01-01') + INTERVAL 1 DAY, '2022-01-01' + INTERVAL 1 DAY, DATE_ADD('2022-01-01', INTERVAL 1 HOUR), DATE_ADD('2022-01-31', INTERVAL 1 MONTH)
SELECT CONVERT(salary, SIGNED), CONVERT(hired, CHAR), CONVERT('2022-01-01', DATE), CONVERT(id, DECIMAL(5,2)), CONVERT(name, CHAR(2)) FROM emp
INSERT INTO dept VALUES (5, 'New', 'Oslo', 12, '2022-01-01 00:00:00')
INSERT INTO dept (id, title) VALUES (5, 'x'), (6, 'y'), (7, DEFAULT)
INSERT INTO dept SET id = 9, title = 'set', budget = 3 * 4
INSERT INTO dept (id, title, budget) SELECT id + 10, name, salary FROM emp WHERE name IS NOT NULL
INSERT INTO dept (id, opened) VALUES (5, '2022-01-01'), (6, '20220102030405'), (7, '2022-1-2 3:4:5')
INSERT INTO dept (id, opened) VALUES (5, '2022-02-30')
INSERT INTO dept (id, budget) VALUES (5, 1.5), (6, '2.5'), (7, 2.5e0), (8, TRUE), (9, -1.5)
INSERT INTO dept (id, budget) VALUES (5, 'abc')
INSERT INTO dept (id, ID) VALUES (5, 6)
INSERT INTO dept (title, id, Title, iD) VALUES ('a', 5, 'b', 6)
INSERT INTO dept (id, Id, no) VALUES (5, 6, 7)
INSERT INTO dept SET id = 9, Id = 10
INSERT INTO dept (id, budget) VALUES (5, '12abc')
INSERT INTO dept (id, budget) VALUES (5, '')
INSERT INTO dept (id, budget) VALUES (3000000000, 1)
INSERT INTO dept (id, budget) VALUES (1, 1e19)
INSERT IGNORE INTO dept (id, budget) VALUES (5, 'abc')
INSERT INTO dept (id, title) VALUES (5, 'this title is far too long for it to fit')
INSERT INTO dept VALUES (1, 2)
INSERT INTO dept (id, id) VALUES (1, 2)
INSERT INTO emp (id, salary, bonus, rate, active, hired) VALUES (20, 12.345, '1.5', 0.1, TRUE, '2022/05/06'), (21, '12.344', 1e3, 123456.789, FALSE, 20220506), (22, 1e3, 0, 16777217, 2, '2022-05-06 10:00:00')
INSERT INTO emp (id, salary) VALUES (20, 123456789.99)
INSERT INTO emp (id, salary) VALUES (20, 'abc')
INSERT INTO emp (id, active) VALUES (20, 200)
INSERT INTO emp (id, hired) VALUES (20, '2022-02-30')
INSERT INTO emp (id, hired) VALUES (20, '')
INSERT INTO emp (id, hired) VALUES (20, 'yesterday')
INSERT INTO emp (id, hired) VALUES (20, '0000-00-00')
INSERT INTO emp (name) VALUES (12), (1.50), (DATE '2022-01-01'), (1e10), (TRUE), ('trail  ')
INSERT INTO tags VALUES ('w', 'abcdef', 1, 1)
INSERT INTO tags VALUES ('w', 'ab   ', 40000, 1)
INSERT INTO tags VALUES ('w', 'ab   ', 1, 1e400)
INSERT INTO tags VALUES ('w', 'ab   ', 1.5, 1e30), ('v', 5, 2.5, '7')
INSERT INTO nowhere VALUES (1)
INSERT INTO emp (id, name) VALUES (1 + 1, CONCAT('a', 'b')), ((SELECT 5), UPPER('x'))
INSERT INTO sales (sid, price) VALUES (9, 1.0005), (10, -0.0005), (11, 1.0004999)
INSERT INTO sales (sid, qty) SELECT MAX(sid) + 1, SUM(qty) FROM sales
INSERT INTO sales SELECT * FROM sales WHERE qty > 5
REPLACE INTO dept (id, title) VALUES (1, 'again')
UPDATE emp SET salary = salary * 1.1
UPDATE emp SET salary = salary / 3 WHERE dept_id = 1
UPDATE emp SET salary = ROUND(salary * 1.005, 2), bonus = bonus + 1
UPDATE emp SET bonus = salary / 7, rate = salary / 3 WHERE id < 4
UPDATE emp SET salary = NULL WHERE salary < 0
UPDATE emp SET name = UPPER(name) WHERE name LIKE '%o%'
UPDATE emp SET name = CONCAT(name, ' ', id), dept_id = dept_id + 1
UPDATE emp SET dept_id = boss_id, boss_id = dept_id
UPDATE emp SET salary = (SELECT SUM(price) FROM sales WHERE emp_id = emp.id)
UPDATE emp SET salary = (SELECT MAX(budget) FROM dept WHERE budget < 1000)
UPDATE emp e JOIN dept d ON e.dept_id = d.id SET e.name = d.title, e.salary = 1 WHERE d.city = 'paris'
UPDATE emp e LEFT JOIN dept d ON e.dept_id = d.id SET e.active = 0 WHERE d.id IS NULL
UPDATE emp, dept SET emp.name = dept.title WHERE emp.dept_id = dept.id AND dept.id = 3
UPDATE emp a JOIN emp b ON a.boss_id = b.id SET a.salary = b.salary
UPDATE emp SET active = NOT active
UPDATE emp SET active = salary > 1000
UPDATE emp SET hired = DATE_ADD(hired, INTERVAL 1 YEAR)
UPDATE emp SET hired = hired + INTERVAL 1 MONTH WHERE id IN (1, 2)
UPDATE emp SET hired = '2022-1-5' WHERE id = 1
UPDATE emp SET hired = hired + 1 WHERE id = 6
UPDATE emp SET name = NULL, bonus = DEFAULT ORDER BY id DESC LIMIT 2
UPDATE emp SET id = id + 100 WHERE id IN (SELECT emp_id FROM sales)
UPDATE emp SET salary = 5 WHERE id = (SELECT m FROM (SELECT MAX(id) m FROM emp) t)
UPDATE emp SET name = 5, dept_id = '7', bonus = '1e2'
UPDATE emp SET dept_id = 'abc'
UPDATE emp SET dept_id = '' WHERE id = 1
UPDATE emp SET dept_id = 2.5, active = 1.5
UPDATE emp SET salary = 'x' WHERE id = 100
UPDATE emp SET nothing = 1
UPDATE emp SET name = REPLACE(name, 'o', '0'), salary = CASE WHEN salary > 3000 THEN salary - 1 WHEN salary IS NULL THEN 0 ELSE salary END
UPDATE sales SET qty = qty - 1, price = price + qty
UPDATE sales SET note = qty, qty = note WHERE sid = 1
UPDATE sales SET price = 100000
UPDATE sales SET sold_at = '2022-05-05' WHERE sold_at IS NULL
UPDATE sales SET sold_at = DATE_FORMAT(sold_at, '%Y-%m-01')
UPDATE sales SET item = LOWER(TRIM(item)), note = COALESCE(note, 'none')
UPDATE sales s SET s.qty = (SELECT COUNT(*) FROM emp WHERE emp.id <= s.sid)
UPDATE sales SET qty = IF(qty IS NULL, 0, qty DIV 3)
UPDATE sales SET qty = qty / 4
UPDATE sales SET qty = price * 1.5 WHERE sid < 6
UPDATE dept SET city = NULL WHERE city = ''
UPDATE dept SET budget = budget * 1.1 WHERE id > 1
UPDATE tags SET n = n * 5000
UPDATE tags SET x = x + 0.1, n = x WHERE n < 10 AND x < 10
UPDATE tags SET grp = LEFT(word, 5)
UPDATE tags SET grp = word
DELETE FROM emp WHERE salary IS NULL OR salary < 0
DELETE FROM emp WHERE name = 'BOB'
DELETE FROM emp WHERE id IN (SELECT emp_id FROM sales WHERE qty > 5)
DELETE FROM emp WHERE NOT EXISTS (SELECT 1 FROM sales WHERE emp_id = emp.id)
DELETE FROM emp WHERE dept_id NOT IN (SELECT id FROM dept)
DELETE FROM emp ORDER BY salary DESC LIMIT 2
DELETE FROM emp
DELETE e FROM emp e JOIN dept d ON e.dept_id = d.id WHERE d.title = 'sales'
DELETE e FROM emp e LEFT JOIN sales s ON s.emp_id = e.id WHERE s.sid IS NULL
DELETE FROM e USING emp e JOIN dept d ON e.dept_id = d.id
DELETE e, s FROM emp e JOIN sales s ON s.emp_id = e.id WHERE e.id = 1
DELETE FROM sales WHERE sold_at < '2022-02-01'
DELETE FROM sales WHERE YEAR(sold_at) = 2022 AND MONTH(sold_at) = 1
DELETE FROM sales WHERE item LIKE 'p%' AND qty > 0
DELETE s1 FROM sales s1 JOIN sales s2 ON s1.item = s2.item AND s1.sid > s2.sid
DELETE FROM tags WHERE word = 'beta'
DELETE FROM tags WHERE x > 0.1 AND x < 0.25
TRUNCATE TABLE emp
DROP TABLE tags
DROP TABLE nothing
DROP TABLE IF EXISTS nothing
ALTER TABLE emp ADD COLUMN email VARCHAR(20) DEFAULT 'none'
ALTER TABLE emp ADD age INT NOT NULL DEFAULT 5 AFTER name
ALTER TABLE emp ADD age INT NOT NULL FIRST
ALTER TABLE emp DROP COLUMN bonus, DROP rate
ALTER TABLE emp MODIFY COLUMN salary INT
ALTER TABLE emp CHANGE name full_name VARCHAR(100)
ALTER TABLE emp RENAME COLUMN name TO nom
ALTER TABLE emp DROP COLUMN nothing
ALTER TABLE emp ADD COLUMN name INT
ALTER TABLE sales MODIFY price DECIMAL(8,1)
ALTER TABLE tags RENAME TO labels; SELECT * FROM labels
CREATE TABLE t2 AS SELECT dept_id, AVG(salary) a, COUNT(*) c, MAX(hired) h, SUM(bonus) s FROM emp GROUP BY dept_id; SELECT * FROM t2
CREATE TABLE t2 AS SELECT dept_id, AVG(salary) a, COUNT(*) c, MAX(hired) h, SUM(bonus) s, CONCAT(name, id) n, salary / 3 q, 1 one FROM emp GROUP BY dept_id, name, id; DESCRIBE t2
CREATE TABLE k (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(5) NOT NULL, u INT UNIQUE); INSERT INTO k (v, u) VALUES ('a', 1), ('b', 2); INSERT INTO k (v, u) VALUES ('c', 1) ON DUPLICATE KEY UPDATE v = VALUES(v); SELECT * FROM k
CREATE TABLE k (id INT PRIMARY KEY, v INT DEFAULT 7); INSERT INTO k (id) VALUES (1); INSERT INTO k VALUES (1, 3) ON DUPLICATE KEY UPDATE v = v + VALUES(v); REPLACE INTO k VALUES (1, 9), (2, 8); SELECT * FROM k
CREATE TABLE k (id INT PRIMARY KEY, v INT); INSERT INTO k VALUES (1, 1), (1, 2)
CREATE TABLE k (id INT PRIMARY KEY, v INT); INSERT IGNORE INTO k VALUES (1, 1), (1, 2), (2, 2); SELECT * FROM k
CREATE TABLE k (id INT NOT NULL, v INT); INSERT INTO k (v) VALUES (1)
CREATE TABLE k (id INT NOT NULL, v INT); INSERT INTO k VALUES (NULL, 1)
CREATE TABLE k (s VARCHAR(10), UNIQUE KEY (s)); INSERT INTO k VALUES ('a'), ('A')
CREATE TABLE k (s VARCHAR(10), UNIQUE KEY (s)); INSERT INTO k VALUES ('a'), ('a ')
CREATE TABLE k (a INT, b INT, PRIMARY KEY (a, b)); INSERT INTO k VALUES (1, 1), (1, 2), (1, 1)
CREATE TABLE emp (a INT)
CREATE TABLE IF NOT EXISTS emp (a INT); SELECT COUNT(*) FROM emp
CREATE TABLE k (a INT, a INT)
CREATE VIEW v AS SELECT name, salary FROM emp WHERE active; SELECT * FROM v ORDER BY name
CREATE INDEX ix ON emp (name)
SET @x = 5; SELECT @x + 1, @x
SET @r = 0; SELECT id, (@r := @r + 1) AS rn FROM emp ORDER BY id
START TRANSACTION; DELETE FROM emp; ROLLBACK; SELECT COUNT(*) FROM emp
BEGIN; DELETE FROM emp WHERE id = 1; COMMIT; SELECT COUNT(*) FROM emp
SELECT DISTINCT d.title FROM dept d ORDER BY d.title
SELECT DISTINCT d.title FROM dept d WHERE d.id IN (SELECT dept_id FROM emp) ORDER BY d.title
SELECT DISTINCT e.name, d.title FROM emp e JOIN dept d ON d.id = e.dept_id ORDER BY d.title, e.name
SELECT CAST(x AS DECIMAL(30,5)) FROM tags
SELECT ROUND(x, 1), FLOOR(x) FROM tags
SELECT x / n, n * x, x * 10 FROM tags
SELECT CAST(x AS CHAR), CONCAT(x, '') FROM tags
SELECT 1+1, 2-1, 3*4, 2.5-1.5, CONCAT(1/3)
SELECT CONCAT(1e-5), CONCAT(1e-10), CONCAT(1e-14), CONCAT(1e-15), CONCAT(1e-16), CONCAT(1.5e-20), CONCAT(1.2345678901234567e-10), CONCAT(1e-300), CONCAT(1.5e-16), CONCAT(1e14), CONCAT(1.5e14), CONCAT(1e15), CONCAT(1.5e15), CONCAT(123456789012345680e0), CONCAT(1.5e17)
SELECT CONCAT(ROUND(0.5e0, 2)), CONCAT(ROUND(0.5e0, 2), ' kg'), CONCAT(TRUNCATE(2.567e0, 1)), CONCAT(ROUND(3e0, 2)), CONCAT(FORMAT(2.5e0, 0)), CONCAT(ROUND(2.5e0)), CONCAT(ROUND(1e0/3, 2) + 1)
SELECT rate, CONCAT(rate), FORMAT(rate, 2), rate / 2, CONCAT(ROUND(rate, 2)), CONCAT(rate * 2), ABS(rate), GREATEST(rate, 0), IFNULL(rate, 0), MAX(rate) OVER (), COALESCE(rate, bonus), CASE WHEN 1 THEN rate ELSE 0 END FROM emp
SELECT DISTINCT name FROM emp ORDER BY LENGTH(name), name
SELECT DISTINCT YEAR(hired) FROM emp ORDER BY YEAR(hired) DESC
SELECT DISTINCT e.dept_id, d.title AS t FROM emp e JOIN dept d ON d.id = e.dept_id ORDER BY e.dept_id, t
SELECT DISTINCT emp.dept_id FROM emp ORDER BY emp.dept_id + 1 DESC
SELECT DISTINCT e.* FROM emp e ORDER BY e.id
SELECT DISTINCT UPPER(e.name) n FROM emp e ORDER BY UPPER(e.name)
SELECT id, -rate, FLOOR(rate), ROUND(-bonus, 1), DATE_ADD(hired, INTERVAL 1 DAY) FROM emp
SELECT '٤' + 0, '1٤' + 0, '٤' = 4, ROUND('٤.٥', 0), ABS('٤'), CAST('٤' AS SIGNED), CAST('1٤' AS DECIMAL(5,2))
SELECT CAST('٢٠٢٤-01-01' AS DATE), YEAR('٢٠٢٤-01-01'), CAST('٢٠:00:00' AS TIME)
SELECT DATE_ADD('2024-01-01', INTERVAL '٤' DAY), DATE_ADD('2024-01-01 00:00:00', INTERVAL '1:٤' HOUR_MINUTE)
INSERT INTO emp (id) VALUES ('٤')
INSERT INTO emp (id, hired) VALUES (99, '٢٠٢٤-01-01')
CREATE TABLE k (a DECIMAL(5,2) DEFAULT 1.5, b DATE DEFAULT '2024-01-01', c VARCHAR(9) DEFAULT '5'); INSERT INTO k (a) VALUES (2); SELECT * FROM k
CREATE TABLE k (a DECIMAL(5,2) DEFAULT 1.555, b VARCHAR(3) DEFAULT 'it''s'); INSERT INTO k VALUES (1, 'a'); SELECT * FROM k
CREATE TABLE k (a INT DEFAULT 'x')
CREATE TABLE k (a INT NOT NULL DEFAULT NULL)
CREATE TABLE k (a INT NOT NULL); INSERT INTO k VALUES (NULL)
CREATE TABLE k (a INT NOT NULL, b INT DEFAULT 3, PRIMARY KEY (a)); INSERT INTO k (a) VALUES (1); INSERT INTO k (a) VALUES (1)
CREATE TABLE k (a INT NOT NULL, b INT DEFAULT 3, PRIMARY KEY (a)); INSERT INTO k (a) VALUES (1); SELECT * FROM k
CREATE TABLE k (a INT NOT NULL, b INT); INSERT INTO k (b) VALUES (1)
CREATE TABLE k (a INT NOT NULL, b INT); INSERT INTO k VALUES (1, 2); UPDATE k SET a = NULL
CREATE TABLE k (a INT PRIMARY KEY, b INT PRIMARY KEY)
CREATE TABLE k (a INT, PRIMARY KEY (b))
CREATE TABLE k (a VARCHAR(5) UNIQUE); INSERT INTO k VALUES ('a'), ('A')
CREATE TABLE k (a VARCHAR(5) UNIQUE); INSERT INTO k VALUES (NULL), (NULL); SELECT COUNT(*) FROM k
DELETE e FROM emp e JOIN dept d ON e.dept_id = d.id
DELETE s FROM sales s LEFT JOIN emp e ON s.emp_id = e.id WHERE e.id IS NULL
DELETE sales FROM sales JOIN emp ON sales.emp_id = emp.id WHERE emp.name = 'Ann'
DELETE x FROM emp e JOIN dept d ON e.dept_id = d.id
INSERT INTO tags (word, n) SELECT CONCAT_WS('-', name, id), id FROM emp WHERE id > ALL (SELECT 3)
SELECT 'Hello' REGEXP '^h', 'Hello' REGEXP 'l{2}', 'Hello' REGEXP '^(he|ja)', 'a.b' REGEXP 'a\\.b', 'axb' REGEXP 'a\\.b', 'abc123' REGEXP '[0-9]+$', 'abc' NOT REGEXP '[xyz]', NULL REGEXP 'a', 'É' REGEXP 'e', 'tel 555-12' RLIKE '[0-9]{3}-[0-9]{2}'
SELECT 'a%' LIKE 'a!%' ESCAPE '!', 'ab' LIKE 'a!%' ESCAPE '!', 'a_c' LIKE 'aX_c' ESCAPE 'x', 'a!' LIKE 'a!!' ESCAPE '!', 'abc' NOT LIKE 'a#b%' ESCAPE '#'
SELECT ('a',1) = (SELECT 'A',1), ('a','1') IN (SELECT 'A', 1), (1,'2') IN (SELECT 1, 2)
SELECT (1,2) = (1,2), (1,NULL) = (1,2), (1,NULL) = (2,2), (1,2) <> (1,3), (1,NULL) <> (1,2), (1,NULL) <=> (1,NULL), (1,2) NOT IN ((1,3),(NULL,2))
SELECT (1,2) = (SELECT 1,2), (1,2) = (SELECT 1,3), (1,2) <> (SELECT 1,3), (1,2) = (SELECT 1,2 FROM emp WHERE 1=0), (1,2) <=> (SELECT 1,NULL)
SELECT 1 > ALL (SELECT 1 FROM emp WHERE 1=0), 1 > ANY (SELECT 1 FROM emp WHERE 1=0), 2 > ALL (SELECT 1 UNION SELECT NULL), 0 > ALL (SELECT 1 UNION SELECT NULL), 2 > ANY (SELECT 1 UNION SELECT NULL), 0 > ANY (SELECT 1 UNION SELECT NULL), NULL > ANY (SELECT 1), NULL > ALL (SELECT 1), 'b' >= ALL (SELECT 'B'), 'a' < ANY (SELECT 'B'), 2 >= SOME (SELECT 2.5 UNION SELECT 1)
SELECT 1 IN (1,'a'), 'a' IN (1,'A'), 0 IN (1,'a'), 'x' IN (1, 2), '1' IN (1, 'x'), 2 NOT IN ('2', 3), NULL IN (1,'a'), 3 IN (1, 'a', NULL), 1.5 IN ('1.5', 2)
SELECT CAST('12' AS UNSIGNED), CAST(12.6 AS UNSIGNED), CAST('12abc' AS UNSIGNED), CONVERT('12.75', DECIMAL(6,1)), CONVERT('5', SIGNED), CONVERT('2024-01-02', DATE), CAST('7' AS UNSIGNED INTEGER), SUM(CAST('3' AS UNSIGNED)), MAX(CAST('3' AS UNSIGNED)) FROM emp
SELECT CONCAT_WS(',', 'a', NULL, 1, 2.50), CONCAT_WS(NULL,'a'), LPAD('abc',2,'x'), RPAD('abc',5,'xy'), LPAD('a',-1,'b'), REVERSE('añb'), REVERSE(12)
SELECT COUNT(DISTINCT dept_id, salary), COUNT(DISTINCT dept_id, name) FROM emp
SELECT DATEDIFF(DATE_ADD('2024-01-01', INTERVAL 1 MONTH), '2024-01-01'), YEAR(DATE_ADD('2024-12-31', INTERVAL 1 DAY)), MONTHNAME('2024-05-05' + INTERVAL 1 MONTH)
SELECT DATE_ADD('2024-01-31', INTERVAL 1 MONTH), DATE_SUB('2024-02-29', INTERVAL 1 YEAR), '2024-01-01' + INTERVAL 1 DAY, '2024-01-01' - INTERVAL 1 HOUR, INTERVAL 2 WEEK + '2024-01-01', DATE_ADD('2024-01-01 10:00:00', INTERVAL 90 MINUTE), DATE_ADD('2024-01-01', INTERVAL '3' DAY), ADDDATE('2024-01-01', INTERVAL 1 QUARTER), DATE_ADD('x', INTERVAL 1 DAY), DATE_ADD('9999-12-31', INTERVAL 1 DAY), DATE_ADD(NULL, INTERVAL 1 DAY), DATE_ADD('2024-01-01', INTERVAL NULL DAY), DATE_ADD('2024-01-01', INTERVAL -1 DAY)
SELECT DATE_FORMAT('2024-01-02 15:04:05','%Y-%m-%d %H:%i:%s %p %h %l %k %M %b %e %c %D %W %a %w %j %T %r %y %%'), DATE_FORMAT('2024-01-02','%d/%m/%Y'), DATE_FORMAT('x','%Y'), DATE_FORMAT('2024-01-02','%q')
SELECT DATE_FORMAT(sold_at, '%Y-%m'), COUNT(*) FROM sales GROUP BY DATE_FORMAT(sold_at, '%Y-%m')
SELECT EXTRACT(YEAR FROM '2024-02-03'), EXTRACT(MONTH FROM '2024-02-03'), EXTRACT(DAY FROM '2024-02-03'), EXTRACT(QUARTER FROM '2024-02-03'), LAST_DAY('2024-02-03'), LAST_DAY('2023-02-03 10:00:00')
SELECT FIELD('b','a','B'), FIELD(2,1,2), FIELD(NULL,1)
SELECT FIELD('b','a','B'), FIELD(2,1,2), FIELD(NULL,1), ASCII('a'), ASCII(''), FIELD('c','a')
SELECT GREATEST(1,2,3), LEAST(1.5,2), GREATEST('a','B'), LEAST(NULL,1), GREATEST(1,2.55,3), LEAST(1e0,2)
SELECT GROUP_CONCAT(name ORDER BY id), GROUP_CONCAT(name ORDER BY id DESC SEPARATOR '; '), GROUP_CONCAT(DISTINCT dept_id ORDER BY dept_id), GROUP_CONCAT(id, ':', name ORDER BY id) FROM emp
SELECT GROUP_CONCAT(salary ORDER BY salary, id) FROM emp
SELECT HOUR(sold_at), MINUTE(sold_at), SECOND(sold_at), EXTRACT(HOUR FROM sold_at) FROM sales
SELECT STR_TO_DATE('May 1, 2013','%M %d, %Y'), STR_TO_DATE('01/02/2024','%d/%m/%Y'), STR_TO_DATE('31/02/2024','%d/%m/%Y'), STR_TO_DATE('abc','%Y-%m-%d'), STR_TO_DATE('2024-01-02 03:04:05','%Y-%m-%d %H:%i:%s'), STR_TO_DATE('Jan 5 2020','%b %d %Y'), STR_TO_DATE('2024-1-2','%Y-%m-%d')
SELECT SUBSTRING('abcdef' FROM -3 FOR 2), SUBSTRING('abc' FROM 2), MID('abcdef',2,3), POSITION('C' IN 'abc'), LOCATE('b','abcb',3), LOCATE('','abc'), LOCATE('a','abc',0), LOCATE('c','abc',5), INSTR('abc','C')
SELECT SUBSTRING_INDEX('www.a.com','.',2), SUBSTRING_INDEX('www.a.com','.',-1), SUBSTRING_INDEX('www','.',-5), SUBSTRING_INDEX('aXbxc','x',1), SUBSTRING_INDEX('a','',1)
SELECT TRIM('  a '), TRIM(LEADING 'ab' FROM 'ababc'), TRIM(TRAILING 'c' FROM 'abcc'), TRIM(BOTH FROM ' a '), TRIM('A' FROM 'aAa'), LTRIM('  a'), RTRIM('a  ')
SELECT TRUNCATE(12.789,1), TRUNCATE(-1.99,0), TRUNCATE(123,-1), TRUNCATE(1.5, 4)
SELECT TRUNCATE(salary, 0), FORMAT(salary, 2), SIGN(salary), SIGN(-0.5), POWER(2,10), POW(2,-1), SQRT(2), SQRT(-1), FORMAT(1234567,0), FORMAT(-1234.567,2) FROM emp
SELECT dept_id FROM emp GROUP BY dept_id HAVING AVG(salary) > ALL (SELECT AVG(salary) FROM emp GROUP BY dept_id)
SELECT dept_id FROM emp GROUP BY dept_id HAVING AVG(salary) >= ALL (SELECT AVG(salary) FROM emp GROUP BY dept_id)
SELECT dept_id, COUNT(*) FROM emp GROUP BY dept_id HAVING COUNT(*) >= ALL (SELECT COUNT(*) FROM emp GROUP BY dept_id)
SELECT dept_id, GROUP_CONCAT(name ORDER BY salary DESC, name) AS g FROM emp GROUP BY dept_id HAVING g LIKE '%a%' ORDER BY dept_id
SELECT id FROM emp WHERE (1,2) IN (SELECT 1)
SELECT id FROM emp WHERE (dept_id, salary) IN (SELECT dept_id, MAX(salary) FROM emp GROUP BY dept_id)
SELECT id FROM emp WHERE id > ALL (SELECT 1,2)
SELECT id FROM emp WHERE id IN ((SELECT 1) UNION (SELECT 2))
SELECT item, GROUP_CONCAT(DISTINCT qty ORDER BY qty DESC), GROUP_CONCAT(price ORDER BY sid) FROM sales GROUP BY item
SELECT name FROM emp WHERE hired > DATE_SUB('2021-01-01', INTERVAL 1 YEAR)
SELECT name FROM emp WHERE name REGEXP '^[a-c]' ORDER BY id
SELECT sid FROM sales WHERE (item, qty) IN (('pen', 10), ('ink', 7), ('pad', '0'))
SELECT sid FROM sales WHERE DATE(sold_at) >= DATE_SUB('2022-02-15', INTERVAL 2 WEEK)
SELECT sid FROM sales WHERE sold_at BETWEEN '2022-01-01' AND DATE_ADD('2022-01-01', INTERVAL 1 MONTH)
TRUNCATE TABLE emp
TRUNCATE nothing
UPDATE emp SET salary = GREATEST(salary, 100), name = CONCAT_WS(' ', name, 'x') WHERE hired > DATE_SUB('2021-01-01', INTERVAL 1 YEAR)
UPDATE emp e JOIN dept d ON e.dept_id = d.id SET e.salary = e.salary + 1
UPDATE emp e LEFT JOIN dept d ON e.dept_id = d.id SET e.name = 'x' WHERE d.id IS NULL
UPDATE emp e, dept d SET e.salary = d.budget WHERE e.dept_id = d.id AND d.id = 2
UPDATE sales SET sold_at = DATE_ADD(sold_at, INTERVAL 1 DAY) WHERE sid IN (1, '2')
UPDATE sales s JOIN emp e ON s.emp_id = e.id SET s.note = e.name, s.qty = s.qty + 1 WHERE e.active = 1
SELECT (SELECT y FROM (SELECT 1 AS x) d LIMIT 1) FROM (SELECT 5 AS y) d
SELECT y FROM (SELECT 5 AS y) d WHERE EXISTS (SELECT 1 FROM (SELECT 1 AS x) d WHERE y = 5)
SELECT COUNT(*) FROM emp S WHERE EXISTS (SELECT 1 FROM emp s WHERE s.id = S.id + 1)
SELECT COUNT(*) FROM emp e, (SELECT 1 AS x) E
SELECT CURRENT_DATE() = CURDATE(), CURRENT_TIMESTAMP() IS NULL
SELECT LOCATE('a', 'banana', 3)
SELECT COUNT(*) FROM emp a, emp b RIGHT JOIN emp c ON b.id = 0
SELECT sid, HOUR(sold_at), MINUTE(sold_at), SECOND(sold_at), DAYOFWEEK(sold_at), WEEKDAY(sold_at), DAYOFYEAR(sold_at), QUARTER(sold_at) FROM sales
SELECT id, HOUR(hired), MONTHNAME(hired), DATE_FORMAT(hired, '%Y %y %M %b %m %c %d %e %j %W %a %H %k %h %I %i %S %s %p %r %T %%') FROM emp
SELECT id, hired + INTERVAL dept_id MONTH, hired - INTERVAL -dept_id DAY, hired + INTERVAL '25' HOUR FROM emp
UPDATE emp SET hired = DATE_SUB(hired, INTERVAL 1 MONTH) WHERE QUARTER(hired) = 1 OR DAYNAME(hired) = 'Monday'
