package integration

// What the tests know of the tables they read from the database's catalogue
// and from db's methods, so that a new table or statement is tested at once.
