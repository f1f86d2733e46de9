"""The words of generated DB-bench tasks: domains with their columns, and pools of names."""

DOMAINS = """
employees staff workers|employee_name=PERSON
  department@Sales,Marketing,Finance,Support,Legal,Research city@CITY salary#2000-9000
  bonus$100-900 hire_date! age#21-64
orders purchases sales_orders|customer=PERSON product@Laptop,Phone,Desk,Chair,Lamp,Printer
  payment_method@Card,Cash,Voucher,Transfer quantity#1-20 total$10-900 order_date!
products inventory stock_items|product_name=THING category@Tools,Toys,Kitchen,Garden,Office,Sport
  supplier@COMPANY price$2-400 stock#0-300 rating~1-5
students pupils graduates|student_name=PERSON major@Physics,History,Biology,Law,Economics,Art
  dormitory@NorthHall,SouthHall,OakHouse,ElmHouse credits#10-180 grade_average~1-5 enrolled_on!
books library_books novels|title=TITLE genre@Crime,Fantasy,Poetry,Travel,Romance,Science
  publisher@COMPANY pages#80-900 price$5-60 published_on!
movies films screenings|movie_title=TITLE genre@Drama,Comedy,Thriller,Horror,Western
  studio@COMPANY minutes#70-200 budget$1-300 score~1-10 release_date!
flights departures routes|pilot=PERSON origin@CITY destination@CITY airline@COMPANY
  distance_km#200-9000 ticket_price$40-900 seats#50-400 flight_date!
hotels guesthouses resorts|hotel_name=PLACE city@CITY owner@COMPANY num_rooms#8-400
  nightly_rate$30-500 stars~1-5 opened_on!
patients clinic_visits admissions|patient_name=PERSON
  ward@Cardiology,Surgery,Pediatrics,Oncology,Neurology doctor@LAST age#1-95 bill$50-950
  temperature~36-40 visit_date!
players athletes squad|player_name=PERSON team@Lions,Tigers,Eagles,Sharks,Wolves,Bears
  field_position@Keeper,Defender,Midfielder,Striker goals#0-40 matches#1-60 market_value$1-90
  signed_on!
cars vehicles fleet|driver=PERSON brand@Volta,Merida,Astra,Corvo,Lumen,Pegaso
  fuel@Petrol,Diesel,Electric,Hybrid mileage#1000-90000 daily_price$20-200 horsepower#60-400
  bought_on!
houses listings apartments|address=STREET district@Harbour,Midtown,Riverside,Hillside,Center
  agent@LAST bedrooms#1-7 rent$300-950 area~30-300 listed_on!
songs tracks playlist|song_title=TITLE artist@LAST genre@Rock,Jazz,Folk,Soul,Techno plays#100-9000
  seconds#90-420 royalty$1-99 released_on!
courses lectures workshops|course_title=TITLE teacher@LAST
  level@Beginner,Intermediate,Advanced,Expert capacity#8-120 fee$20-800 weeks#1-16 starts_on!
recipes dishes meals|dish=THING cuisine@Italian,Thai,Greek,Mexican,Indian,French chef@LAST
  calories#90-1200 cost$2-60 minutes#5-180
events concerts festivals|event_name=TITLE venue@PLACE city@CITY visitors#50-9000
  ticket_price$5-150 event_date!
accounts subscriptions memberships|holder=PERSON plan@Basic,Silver,Gold,Platinum country@COUNTRY
  balance$5-900 logins#0-500 opened_on!
shipments deliveries parcels|recipient=PERSON carrier@COMPANY
  status@Packed,Sent,Delivered,Returned destination@CITY weight~1-40 fee$3-90 packages#1-12
  shipped_on!
animals shelter_animals pets|pet_name=FIRST species@Dog,Cat,Rabbit,Parrot,Hamster
  color@Black,White,Brown,Grey,Golden age#1-16 weight~1-50 adoption_fee$10-300 arrived_on!
exhibits artworks museum_items|item_title=TITLE artist@LAST
  material@Bronze,Marble,Canvas,Glass,Wood height_cm#10-300 insured_value$20-900 acquired_on!
plants garden_plants seedlings|plant_name=THING family@Rose,Lily,Fern,Cactus,Orchid
  location@Greenhouse,Terrace,Courtyard,Roof height_cm#5-250 price$2-80 planted_on!
tickets support_tickets requests|reporter=PERSON priority@Low,Medium,High,Urgent assignee@LAST
  product@Website,App,Database,Printer hours_spent~1-40 replies#0-30 created_on!
projects assignments contracts|project_name=TITLE manager@LAST client@COMPANY
  phase@Draft,Review,Active,Closed budget$50-990 team_size#2-40 start_date!
invoices payments receipts|client=COMPANY currency@Euro,Dollar,Pound,Yen
  status@Paid,Open,Overdue,Disputed amount$10-990 items#1-30 issued_on!
machines devices sensors|device_name=THING site@CITY model@Alpha,Beta,Gamma,Delta,Omega
  state@Idle,Running,Broken,Offline runtime_hours#10-9000 power~1-60 upkeep$5-400 installed_on!
rentals bookings reservations|guest=PERSON item@Bicycle,Kayak,Tent,Scooter,Skis branch@CITY
  days#1-21 deposit$10-300 booked_on!
donations gifts sponsorships|donor=PERSON cause@Health,Education,Wildlife,Housing,Arts
  country@COUNTRY amount$5-950 visits#0-20 given_on!
farms crops harvests|farmer=PERSON crop@Wheat,Barley,Maize,Oats,Rye region@North,South,East,West
  hectares#2-300 tons~1-90 subsidy$50-900 harvested_on!
voters members citizens|member_name=PERSON district@North,South,East,West,Central
  occupation@Nurse,Baker,Lawyer,Farmer,Engineer children#0-6 age#18-95 joined_on!
games matches tournaments|host=CITY sport@Tennis,Chess,Rugby,Hockey,Golf referee@LAST
  attendance#100-9000 prize$10-900 duration_minutes#20-240 played_on!
"""
"""One domain: table names, "|", columns. A mark says what a column holds and its range or pool
follows: `=` a name of its own, `@` a category, `#` INT, `$` DECIMAL, `~` FLOAT or DOUBLE, `!` DATE.
Indented lines go on; so they do in `POOLS`."""

POOLS = """
FIRST Ada Amir Anna Bela Boris Carla Chen Dalia Diego Elena Emil Farah Felix Gita Hana Hugo Ines
  Ivan Jana Jonas Kaito Kira Lara Leon Lina Marco Mei Nadia Nils Olga Omar Petra Ravi Rosa Samir
  Sofia Tariq Tessa Viktor Yara Zoe Arno Bruno Clara Dora Edgar Frida Gustav
LAST Abbott Almeida Baker Becker Bianchi Carter Cruz Dahl Dubois Eriksen Ferrari Fischer Garcia
  Haddad Hansen Ito Jensen Kaya Keller Kim Kowalski Larsen Lopez Mazur Meyer Moreau Nakata Novak
  Okafor Olsen Park Petrov Quinn Rossi Sato Schmidt Silva Tanaka Torres Ueda Varga Weber Wong
  Yilmaz Zeller Zhang
CITY Oslo Lisbon Kyoto Lima Cairo Geneva Austin Porto Riga Sofia Hanoi Quito Dakar Perth Turin
  Bergen Leeds Lyon Malmo Naples Osaka Prague Tallinn Utrecht Vienna Warsaw Zurich Accra Bogota
  Denver Dublin Exeter Florence Ghent Hamburg Izmir
COUNTRY Norway Japan Peru Egypt Latvia Vietnam Ecuador Senegal Italy Sweden France Estonia Austria
  Poland Ghana Colombia Ireland Belgium Germany Turkey Kenya Chile Canada Portugal
COLOR Amber Azure Copper Coral Crimson Ebony Emerald Golden Indigo Ivory Jade Lunar Misty Olive
  Pearl Quiet Royal Ruby Rustic Scarlet Silver Solar Velvet Violet Wild
NOUN Anchor Basket Beacon Blade Bottle Bridge Candle Canyon Compass Crown Drum Falcon Feather
  Forest Fountain Garden Hammer Harbor Kettle Ladder Lantern Meadow Mirror Mountain Ocean Orchard
  Pillow River Saddle Shadow Stone Summit Teapot Thunder Tunnel Valley Wagon Window Winter
PREFIX north south east west city local global central online regional annual partner summer
  winter archived new
SUFFIX records list log data info archive registry overview 2019 2020 2021 2022 2023 2024 2025
"""
"""A pool's name and its words."""
