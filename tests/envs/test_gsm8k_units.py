"""What may stand around a number: the same number, or another one."""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentpeft.envs.gsm8k.answers import NoAnswer, find_final_answer, is_correct

RIGHT = r"""
42|42.|42.0|42.00|+42|$42|$42.00|42$|€42|£42|42€|42 €|¥42|₹42|US$42|USD 42|42 USD|Rs. 42|
Rs 42|EUR 42|C$42|42 dollars|42 cents|42¢|42 apples|42 cookies|42 people|42 men|42 cats|
42 dollars per hour|$42 per hour|$42/hour|42 miles per hour|42 mph|42 km/h|42 mi/hr|
42 km per hour|42 kph|42 m/s|42 m/s²|42 m/s^2|42 sq ft|42 sq. ft.|42 square feet|
42 square meters|42 cubic feet|42 cubic inches|42 cm^2|42 cm²|42 cm³|42 m^3|42 ft^2|
42 meters squared|42 feet squared|42 inches cubed|42 units|42 square units|42 units^2|
42 degrees|42°|42 °C|42°C|42° F|42 degrees Celsius|42 degrees Fahrenheit|42^\circ|
42^{\circ}|42^\circ\text{C}|42^{\circ}\mathrm{F}|42%|42\%|42 %|42 percent|42 per cent|
42 percentage points|42 percent of the students|42% of the class|42 kg|42kg|42 g|42g|42 lbs|
42 lbs.|42 lb|42 pounds|42 oz|42 ounces|42 grams|42 kilograms|42 L|42 l|42 ml|42 mL|
42 liters|42 gallons|42 cups|42 quarts|42 pints|42 in|42 inches|42"|42'|42 ft|42 feet|42 yd|
42 yards|42 miles|42 km|42km|42 cm|42 mm|42 m|42m|42 hours|42 hrs|42 h|42 minutes|42 min|
42 mins|42 seconds|42 s|42 sec|42 days|42 weeks|42 months|42 years|42 years old|42-year-old|
42 year olds|42 pm|42 a.m.|42 p.m.|42 more apples|42 more|42 fewer apples|42 in total|
42 total|42 left|42 apples left over|42 remaining|42 each|42 apiece|42 a day|42 per day|
42 times|42 times as many|42 times per week|42 of them|42 of the apples|42 out of the class|
**42**|**42** apples|*42*|__42__|_42_|`42`|"42"|'42'|“42”|(42)|[42]|{42}|$42$|$$42$$|$ 42 $|
\(42\)|\[42\]|\text{42}|\textbf{42}|\mathbf{42}|\mathrm{42}|\left( 42 \right)|
\left(42\right)|\left[42\right]|\big(42\big)|\displaystyle 42|\bf 42|{\bf 42}|
\underline{42}|\mbox{42}|\boldsymbol{42}|\bm{42}|\color{red}{42}|\textcolor{red}{42}|42\,|
42\;|42~|~42|42\quad|42\qquad|\quad 42|42\ |42\!|\,42|\ 42|42~\text{m}|42\,\text{m}|
42\quad\text{apples}|42 \text{ m}^2|42 \text{ m}^{2}|42\text{ cm}^3|42 \mathrm{cm}^2|
42\,\mathrm{km/h}|42\ \mathrm{kg}|42\text{ apples}|42 \text{ square feet}|42 \text{dollars}|
\$42|\text{\$}42|\text{\$42}|\$ 42|\text{USD } 42|\pounds 42|42\text{ cents}|42\degree|
42\hspace{2pt}\text{m}|x = 42|x=42|n=42|=42|= 42|= $42|84/2|84 / 2|\frac{84}{2}|
\dfrac{84}{2}|\tfrac{84}{2}|\cfrac{84}{2}|\frac{84}2|\frac {84} {2}|\frac{ 84 }{ 2 }|
41 \frac{2}{2}|41 2/2|84 \over 2|{84 \over 2}|\frac{84}{2} \text{ apples}|4.2e1|
4.2 \times 10^1|4.2 \times 10^{1}|4.2 x 10^1|4.2*10^1|4.2 \cdot 10^1|
420e-1|0.042 thousand|0.42 hundred|3.5 dozen|3.5 dozen eggs|0.042k|42 meters (total)|
42 (apples)|42 apples.|42; thanks|42 o'clock|42 children's books|42nd|42th|42 third graders|
42 fifth-graders|42 kWh|42 GB|42 MB|42 mg|42 gal|42 people per square mile|42 TVs|
42 boxes of pencils|42 pieces of candy|42 ice cream cones|42 ice cubes|42 squares|42 slices|
42 pages|42 books|42 logs|42 points|42 trips|42 shirts|42 V|42 W|42 N|42 J|42 C|42 F|
42 cm long|42 feet tall|42 dollars total|42 (dollars)|42 years of age|42 piñatas|42 cafés|
42メートル|42個|42円|42 元|42 jelly beans|42 tbsp|42 people in all|42 dollars in profit|42-inch|
42 T-shirts|42 x-rays|42 e-books|42 fl oz|42 fl. oz.|
42 rpm|42 bps|42 %.|42apples|42cookies|42 ounces per serving|42 MPH|42 LBS|42 KG|42 FT|
"""
WRONG = r"""
42 per mille|42 permille|42 repeating|42 recurring|42 mille|42 tausend|42 Millionen|
42 millones|42 pico|42 femto|42 exa|42 zetta|42 yotta|42 deka|42 x-squared|42T-shirts|42 T-x|
42 squared|42 cubed|42 factorial|42 halves|42 thirds|42 quarters|42 fourths|42 fifths|
42 tenths|42 hundredths|42 thousandths|42 millionths|42 eighths|42 ninths|42 twelfths|
42 twentieths|42 percent less|42% less|42 percent more|42% more|42% off|42% fewer|
42% higher|42% lower|42 % cheaper|42 percent increase|42% decrease|42 percent discount|
42 per cent less|42k|42K|42M|42B|42T|42G|42 k|42 K|42 M|42 B|42bn|42 bn|42mn|42 mil|
42 grand|42MM|$42k|$42M|$42m|$42 m|$42mm|$42 mm|42 thousand|42 thousands|42 hundred|
42 hundreds|42 million|42 millions|42 billion|42 trillion|42 quadrillion|42 zillion|42 lakh|
42 crore|42 myriad|42 dozen|42 dozens|42 score|42 gross|42 pairs|42 couple|42 tens|42 half|
42 and a half|42 a half|42 one|42 twos|42x|42y|42 x|42 y|42n|42a|42b|42 n|42e|42i|42j|42xy|
42ab|42 xy|42abc|42xyz|42*y|42 * y|42*x|42 * x|42*2|42 * 2|42**2|42 ** 2|42^2|42 ^ 2|42^{2}|
42^x|42^n|42²|42³|42 ²|42⁴|42ⁿ|42!!|42+|42 +|42 + 1|42+1|42-1|42 - 1|42 - x|42-x|
42/2|42/x|42 / x|42/y|42 ÷ 2|42 ÷ x|42x2|42 x 2|42 times 2|42 times two|
42 times x|42 times itself|42 times ten|42 plus one|42 plus x|42 plus|42 minus one|42 minus|
42 less|42 less than x|42 divided by 2|42 divided by two|42 divided by x|
42 multiplied by two|42 to the power of 2|42 to the second power|42 to the third|
42 to the power of n|42 power|42 doubled|42 tripled|42 halved|42 twice|42 double|42 mod 5|
42 mod m|42 modulo|42 pi|42π|42 \pi|42\pi|42 tau|42 sqrt|42\sqrt{2}|\sqrt{42}|√42|42√2|
42 root two|42 square root|42 square roots|42 log|42 ln x|42 sin x|42 cos|42 choose 2|
42 reversed|42 backwards|42 inverse|42 reciprocal|42 negated|42 negative|42_{10}|42_8|
42 base 8|42 base eight|42 in binary|42 hex|42 or 43|42 or more|42 or so|42 and 43|42, 43|
42; 43|42 43|42-43|42 to 43|42 to forty-five|42 not|not 42|42 is wrong|42 isn't|
42 maybe|42?|42 if|42 unless|42 else|42 instead|42 at least|42 at most|42 minimum|
42 lacs|42 promille|42 mila|42 tausends|42 thous|42 cosine|42 tetrated|42 choose|42 imaginary|
42 incorrect|42 googolplex|42 тысяч|42 миллиона|42만|42 백만|42천|
42 max maximum|>42|<42|≥42|≤42|≈|42>|42<43|42=43|42 = x|42 : 1|42:1|42:30|42 ± 1|±42|
42 percent of half|42 of a dozen|half of 42|twice 42|-42|--42|- 42|42.5|42,5|42.42|
4.2|420|0.42|1/42|\frac{1}{42}|\frac{42}{2}|\frac42|\frac12|\frac{1}{2}|\frac422|42\frac12|
42\frac{1}{2}|42 \frac{1}{2}|42 1/2|42½|42 ½|¼ 42|4\ 2|4\;2|4~2|4 2|4\quad 2|4\,2|4{2}2|
42e1|42E2|42e-1|42 x 10^2|42 \times 10^3|42 \times 2|42 \cdot 2|42 \cdot x|
42\cdot y|42 · y|\overline{42}|4.\overline{2}|42\overline{3}|42.\dot{3}|42...|42.0...|42…|
0.(42)|42.(3)|\lfloor 42.5 \rfloor|42\%\text{ less}|42\text{ squared}|42 \text{ factorial}|
42\text{ dozen}|42\text{ thousand}|42 \text{ million}|42\text{k}|42 \text{ halves}|
42\mathrm{k}|42\text{M}|42\text{x}|42\,x|42~x|42\ x|42\;y|42 (2)|42(2)|42(x)|42(x+1)|42[2]|
42{x}|42 fold|42-fold|42fold|42 tenfold|42 percent squared|42 hundredfold|42 kilo squared|
42 zero|42 point five|42 and a quarter|42 and|42 square|42 cubic|42 sq|42 dollars squared|
42 apples squared|42 apples²|42 apples^2|42 dollars²|42 then squared|42, squared|
42 (squared)|42 - squared|42: squared|42, doubled|42 ^squared|42'th power|
42 raised to the fourth|
42 exponent|42 tenth|
42 fiftieth|42 infinity|42 infinite|42 ish|42ish|42 upwards|42 mega|42 giga|42 micro|
42 milli|42 hundred thousand|42 twodozen|42 hundredthousand|42 half-dozen|42 baker's dozen|
42 minus tax|42 less tax|42 less 2|42 plus tax|42 - tax|42*tax|42 * tax|42 + tax|42/half|
42 / dozen|42% of 10|42% of half|42%%x|42&|42 & 43| 43|42 ~ 43|42 @|42 #|42 over two|
42 into two|42 nth|42 remainder|42 remainder 1|42 r 1|42 R1|42 mod|0x42|42h2|42 nor|
42 versus|42 otherwise|42 triple|42 quadruple|42 thrice|42 logarithm x|42 cube root|
42 to the x|42 y's|4,2|4 2/1|42ths|42 5ths|42 twenties|42 sixes|42 below zero|42 below|
42 opposite|42 twentyfold|
"""
STATEMENTS = ("#### {}", r"So it is \boxed{{{}}}.", "The answer is {}")
ODD_LETTERS = [
    "42 m\u0456llion",  # a Cyrillic i
    "42 \uff4dillion",
    "42 m\u0131llion",
    "42 thou\u200bsand",
    "42 thou\u015band",
    "42 d\u03bfzen",  # a Greek o
    "42 \u0662",
    "42\u4e07",
    "42\u5104",
    "42\u5343",
    "42 \u4e94",
    "42\u2167",
    "42\u2082",
    "42\U0001d465",
    "42 \U0001d465",
    "42\u03b1",
    "42 \u03b2",
    "42\u0445",
    "42 \u2212 1",
    "\u221242",
    "42 \u00d7 2",
    "42 \u00d7 x",
    "42 \u00d7 10³",
    "42\u201343",
    "\u201342",
]


def split(table: str) -> list[str]:
    return table.replace("\n", "").split("|")[:-1]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_same_number_is_right_however_it_is_written(statement):
    refused = [text for text in split(RIGHT) if not is_correct(statement.format(text), "42")]
    assert refused == []


@pytest.mark.parametrize("statement", [*STATEMENTS, "Answer: {} ."])
def test_another_number_is_wrong_however_near_its_digits_are(statement):
    texts = [*split(WRONG), *ODD_LETTERS]
    assert [text for text in texts if is_correct(statement.format(text), "42")] == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5k", 5000),
        ("$1.5M", 1_500_000),
        ("2B", 2 * 10**9),
        (r"1.5\text{ million}", 1_500_000),
        ("3 dozen", 36),
        ("5 thousands", 5000),
        (r"\frac12", Fraction(1, 2)),
        (r"\frac{1}2", Fraction(1, 2)),
        (r"\frac1{2}", Fraction(1, 2)),
        (r"1\frac12", Fraction(3, 2)),
        (r"21\tfrac12 \text{ cups}", Fraction(43, 2)),
        (r"1\,234\,567", 1_234_567),
        (r"1,\!234", 1234),
        ("1\u202f234", 1234),
        ("1.5 \u00d7 10^3", 1500),
        ("1.5 \u00d7 10³", 1500),
        ("1.5e-1", Fraction(3, 20)),
        ("3/4ths", None),
        ("1/4th", Fraction(1, 4)),
        ("42 pairs of shoes", 42),
        ("42 pairs", None),
    ],
)
def test_what_can_be_computed_exactly_is(text, value):
    answer = find_final_answer(rf"\boxed{{{text}}}")
    assert answer == value or (value is None and not isinstance(answer, Fraction))


numbers = st.one_of(st.integers(2, 100), st.integers(1000, 10**7))
WRITTEN = (
    str,
    "{:,}".format,
    "{}.0".format,
    "+{}".format,
    "{}e0".format,
    lambda number: f"{number:,}".replace(",", r"\,"),
    lambda number: f"{number:,}".replace(",", "{,}"),
    lambda number: rf"\frac{{{2 * number}}}{{2}}",
    lambda number: rf"\dfrac{{{3 * number}}}3",
    lambda number: f"{7 * number}/7",
)
BEFORE = ("", "", "$", r"\$", "€", "= ", "x = ", "US$", r"\quad ", "~")
WRAPPED = (
    "{}", "**{}**", "__{}__", "`{}`", "({})", "${}$", r"\({}\)", r"\left( {} \right)",
    r"\text{{{}}}", r"\mathbf{{{}}}", r"{{\bf {}}}", r"\displaystyle {}", "{}.", "{},", r"{}\;",
)  # fmt: skip
NOUNS = (
    "apples", "dollars", "cents", "people", "hours", "minutes", "years old", "more cookies",
    "boys", "miles per hour", "square feet", "degrees", "cups of flour", "boxes", "kids",
    "in total", "left", "gallons", "points", "pages a day", "pencils each", "feet tall", "eggs",
)  # fmt: skip
UNITS = ("km", "kg", "m/s", "cm^2", "lbs", "ft", "mph", "%", "h", "m²", "sq. ft", "°C", "km/h")
LATEX_UNITS = (r"\text{ m}^2", r"~\text{cm}", r"\,\mathrm{km}", r"^\circ", r"\%", r"\quad\text{kg}")
after = st.one_of(
    st.just(""),
    st.sampled_from(NOUNS).map(" {}".format),
    st.sampled_from(NOUNS).map(r"\text{{ {}}}".format),
    st.sampled_from(UNITS).map(" {}".format),
    st.sampled_from(LATEX_UNITS),
)


@given(
    numbers,
    st.sampled_from(WRITTEN),
    st.sampled_from(BEFORE),
    after,
    st.sampled_from(WRAPPED),
    st.sampled_from(STATEMENTS),
)
def test_a_number_in_any_notation_with_any_unit_is_right(
    number, write, before, unit, wrapped, statement
):
    text = wrapped.format(before + write(number) + unit)
    assert is_correct(statement.format(text), str(number))


operands = st.one_of(
    st.integers(2, 999).map(str),
    st.sampled_from(["x", "y", "n", "ab", "two", "ten", "half", "z apples", r"\pi", r"\sqrt{2}"]),
    st.sampled_from([r"\frac{1}{2}", "(1 + 1)", "1/3", "2 apples", r"\text{two}", "itself"]),
)
OPERATORS = r"""
+ - * / ÷ ^ ** : = < > ~ & ± √ \times \cdot \div \pm \sqrt plus minus times less or and mod over by
to per of , ; (
"""
CHANGES = r"""
squared cubed factorial halves thirds quarters tenths hundredths dozens thousand million hundred
score gross k K M B T n x y xy ! ² ³ ^2 ^{3} ^n + doubled tripled halved twice twofold mod π \pi
\sqrt{2} _2 _{10} or not? reversed
"""
operators = st.sampled_from(
    [*OPERATORS.split(), "\u00d7", "divided by", "multiplied by", "to the power of", "out of"]
)
changes = st.sampled_from(
    [*CHANGES.split(), "percent less", "% less", "% more", "% off", "per cent lower", "to the nth"]
)


@given(numbers, operators, operands, st.sampled_from(["", " "]), st.sampled_from(["", " "]))
def test_an_operator_with_an_operand_is_another_number(number, operator, operand, left, right):
    assume(not (operator == "per" and operand == "z apples"))
    if operator[-1].isalpha():
        left = right = " "
    text = f"{number}{left}{operator}{right}{operand}"
    for statement in STATEMENTS:
        assert not is_correct(statement.format(text), str(number)), text


@given(
    numbers,
    changes,
    st.sampled_from(["", " "]),
    st.sampled_from(["", " apples", " dollars", " miles per hour"]),
    st.sampled_from(WRAPPED),
)
def test_a_word_or_sign_that_changes_a_number_is_another_number(
    number, change, space, unit, wrapped
):
    for text in (f"{number}{space}{change}{unit}", rf"{number}{space}\text{{{change}}}{unit}"):
        for statement in STATEMENTS[:2]:
            answer = statement.format(wrapped.format(text))
            assert not is_correct(answer, str(number)), answer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\boxed{5}^2", NoAnswer.UNCLEAR),
        (r"\boxed{5} ^ {2}", NoAnswer.UNCLEAR),
        (r"\boxed{5}+1", NoAnswer.UNCLEAR),
        (r"\boxed{5}\cdot 3", NoAnswer.UNCLEAR),
        (r"\boxed{5}/2", Fraction(5, 2)),
        (r"\boxed{5} million", Fraction(5_000_000)),
        (r"\boxed{5}k", Fraction(5000)),
        (r"$\boxed{42}^{\circ}$.", Fraction(42)),
        (r"\boxed{42}.", Fraction(42)),
        (r"\boxed{42} million-dollar houses? No: \boxed{42}", NoAnswer.UNCLEAR),
        (r"\boxed{42}, which is right!", Fraction(42)),
        (r"**\boxed{42}**", Fraction(42)),
        (r"\boxed{42} - the number of eggs", Fraction(42)),
        (r"\boxed{42} apples", Fraction(42)),
    ],
)
def test_what_stands_behind_a_box_is_of_its_number(text, value):
    assert find_final_answer(text) == value
