from part import Part
PART = Part("agent","agent",1.0,1.0,{},lambda b: None)
