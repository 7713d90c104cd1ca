package localsocket

// maxPath is the size of sun_path less its terminating zero (unix(7)).
const maxPath = 107
